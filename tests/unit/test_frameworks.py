"""What is recognized as a call of Lightning's or Accelerate's."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fastload.engines.frameworks import accelerate_sets_generators, lightning_ends_epoch

LIGHTNING = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
BY = "def {function}(self, asked):\n    return asked()\n"


def answer(module: str, function: str, asked: Any, *, last: Any = True) -> bool:
    """Ask from a function of a module."""
    names: dict[str, Any] = {"__name__": module}
    exec(BY.format(function=function), names)
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(is_last_batch=last)))
    return bool(names[function](loop, asked))


@pytest.fixture
def imported(monkeypatch):
    for name in (*LIGHTNING, "accelerate.checkpointing"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


@pytest.mark.usefixtures("imported")
def test_the_frameworks_own_functions_are_recognized_by_module_and_name():
    for module in LIGHTNING:
        assert answer(module, "on_save_checkpoint", lightning_ends_epoch)
        assert not answer(module, "on_save_checkpoint", lightning_ends_epoch, last=False)
        assert not answer(module, "another", lightning_ends_epoch)
    assert answer("accelerate.checkpointing", "load_accelerator_state", accelerate_sets_generators)
    assert not answer("accelerate.checkpointing", "save_accelerator_state", accelerate_sets_generators)


@pytest.mark.usefixtures("imported")
def test_users_functions_of_the_same_names_are_not():
    assert not answer("train", "on_save_checkpoint", lightning_ends_epoch)
    assert not answer("train", "load_accelerator_state", accelerate_sets_generators)


def test_no_stack_is_read_while_the_frameworks_are_not_imported(monkeypatch):
    for name in (*LIGHTNING, "accelerate.checkpointing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "_getframe", lambda *depth: pytest.fail("the stack was read"))
    assert not lightning_ends_epoch()
    assert not accelerate_sets_generators()
