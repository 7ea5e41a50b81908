"""What is recognized as a call of Lightning's or Accelerate's."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fastload.state.frameworks import accelerate_sets_generators, lightning_ends_epoch

LIGHTNING = {
    "lightning.pytorch": "lightning.pytorch.loops.fit_loop",
    "pytorch_lightning": "pytorch_lightning.loops.fit_loop",
}
FIT_LOOP = """
import functools
class Loop:
    def __init__(self, **progress):
        self.epoch_loop = SimpleNamespace(batch_progress=SimpleNamespace(**progress))
    def on_save_checkpoint(self, asked):
        return asked()
    def another(self, asked):
        return asked()
"""
CHECKPOINTING = """
def once(function):
    @functools.wraps(function)
    def wrapped(asked):
        return function(asked)
    return wrapped
@once
def load_accelerator_state(asked):
    return asked()
def save_accelerator_state(asked):
    return asked()
"""


@pytest.fixture(autouse=True)
def _no_frameworks(monkeypatch):
    for name in (*LIGHTNING, *LIGHTNING.values(), "accelerate", "accelerate.checkpointing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def install(monkeypatch):
    def of(package: str, module: str, source: str, **changes: str) -> Any:
        for former, now in changes.items():
            source = source.replace(former, now)
        made = ModuleType(module)
        exec(f"import functools\nfrom types import SimpleNamespace\n{source}", vars(made))
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
        monkeypatch.setitem(sys.modules, module, made)
        return made

    return of


@pytest.mark.parametrize("package", LIGHTNING)
def test_lightnings_own_function_is_recognized(install, package):
    loop = install(package, LIGHTNING[package], FIT_LOOP).Loop(is_last_batch=True)
    assert loop.on_save_checkpoint(lightning_ends_epoch)
    assert not loop.another(lightning_ends_epoch)
    assert not lightning_ends_epoch()
    loop.epoch_loop.batch_progress.is_last_batch = False
    assert not loop.on_save_checkpoint(lightning_ends_epoch)


def test_accelerates_own_function_is_recognized(install):
    module = install("accelerate", "accelerate.checkpointing", CHECKPOINTING)
    assert module.load_accelerator_state(accelerate_sets_generators)
    assert not module.save_accelerator_state(accelerate_sets_generators)


def test_users_functions_of_the_same_names_are_not(install):
    install("accelerate", "accelerate.checkpointing", CHECKPOINTING)
    install("pytorch_lightning", LIGHTNING["pytorch_lightning"], FIT_LOOP)
    mine: dict[str, Any] = {"__name__": "accelerate.checkpointing", "SimpleNamespace": SimpleNamespace}
    exec(f"import functools\n{FIT_LOOP}{CHECKPOINTING}", mine)
    assert not mine["Loop"](is_last_batch=True).on_save_checkpoint(lightning_ends_epoch)
    assert not mine["load_accelerator_state"](accelerate_sets_generators)


def test_a_version_with_other_functions_is_a_warning(install):
    loop = install("lightning.pytorch", LIGHTNING["lightning.pytorch"], FIT_LOOP).Loop(last=True)
    with pytest.warns(UserWarning, match=r"loop of this version of Lightning is another .*is_last_batch"):
        assert not loop.on_save_checkpoint(lightning_ends_epoch)
    install("lightning.pytorch", LIGHTNING["lightning.pytorch"], FIT_LOOP, on_save_checkpoint="save")
    with pytest.warns(UserWarning, match=r"lightning.pytorch has no on_save_checkpoint in lightning.pytorch.loops.fit"):
        assert not lightning_ends_epoch()
    del sys.modules[LIGHTNING["lightning.pytorch"]]
    with pytest.warns(UserWarning, match="has no on_save_checkpoint"):
        assert not lightning_ends_epoch()
    install("accelerate", "accelerate.checkpointing", CHECKPOINTING, load_accelerator_state="load")
    with pytest.warns(UserWarning, match="accelerate has no load_accelerator_state in accelerate.checkpointing"):
        assert not accelerate_sets_generators()


def test_no_stack_is_read_while_the_frameworks_are_not_imported(monkeypatch):
    monkeypatch.setattr(sys, "_getframe", lambda *depth: pytest.fail("the stack was read"))
    assert not lightning_ends_epoch()
    assert not accelerate_sets_generators()
