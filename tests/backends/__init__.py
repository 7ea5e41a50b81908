"""Run a case with torch's DataLoader and with FastLoader on each backend, and compare.

A case is a function of a loader class; it builds what it needs, iterates, and returns its observations.
:meth:`Backend.same` runs it with both classes from the same random state and compares everything: the observations with
their types, the exception, the warnings, and the state of the random generators afterwards.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import multiprocessing
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from references import kept
from torch.utils.data import DataLoader

import fastload
from fastload import FastLoader

from . import simulated

Case = Callable[[Callable[..., DataLoader[Any]]], Any]


@dataclasses.dataclass(frozen=True)
class Backend:
    """A backend, selected by FastLoader's own arguments.

    ``plain`` is torch's loader on the CPU. ``wrapped`` casts float32 to float32 on the CPU: values are unchanged, but
    batches pass through TorchDeviceIterator as HostBatch. ``simulated`` runs the GPU's code, including pin-memory
    thread, slots and prefetching copies, on a simulated accelerator. ``forkserver`` is ``simulated`` with the start
    method that is Python 3.14's default; all others fork. ``gpu`` uses a real GPU.
    """

    name: str
    own: dict[str, Any]
    start_method: str = "fork"
    test: str = ""  # test to which the case belongs

    def of(self, test: str) -> Backend:
        """Bind the backend to one test, which runs torch's loader once for all backends."""
        return dataclasses.replace(self, test=test)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Set the default start method, and simulate an accelerator where the test needs one."""
        context = multiprocessing.get_context(self.start_method)
        monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", context)
        if self.name in ("simulated", "forkserver"):
            simulated.install(monkeypatch)

    @property
    def loader(self) -> Callable[..., FastLoader[Any]]:
        """FastLoader with this backend's arguments; call it like torch's DataLoader."""
        return functools.partial(FastLoader, **self.own)

    def same(self, case: Case, *, anew: bool = False) -> Outcome:
        """Run ``case`` with both loaders, require the same outcome, and return torch's.

        Args:
            case: The test's only case, unless ``anew``.
            anew: Run torch's loader again on each backend, for cases that depend on the accelerator.
        """
        alone = anew or self.start_method != "fork"
        expected = kept(lambda: Outcome.of(case, DataLoader), name=None if alone else self.test)
        got = Outcome.of(case, self.loader)
        if expected.error is None and got.error is not None:
            raise AssertionError("only FastLoader raised") from got.exception
        assert got.error == expected.error
        assert_same(got.value, expected.value, strides=self.own["device"] == "cpu")
        assert got.warnings == expected.warnings
        assert_same(got.random_states, expected.random_states, "random state")
        if self.start_method != "fork" and expected.error and "local object" in expected.error[1]:
            pytest.skip("both loaders refuse: only a forked worker can be given a local function")
        return expected


BACKENDS = {
    "plain": Backend("plain", {"device": "cpu"}),
    "wrapped": Backend("wrapped", {"device": "cpu", "dtype": torch.float32}),
    "simulated": Backend("simulated", {"device": "cuda"}),
    "forkserver": Backend("forkserver", {"device": "cuda"}, "forkserver"),
    "gpu": Backend("gpu", {"device": "cuda"}),
}

# The one of the quick suite. It takes everything that a GPU would: the pin-memory thread, slots, copies ahead.
QUICK = "simulated"


def parameters(*names: str, quick: tuple[str, ...] = (QUICK,)) -> list[Any]:
    """Return a test's backends: ones that are not ``quick`` are slow, ``gpu`` needs a device."""
    marks = {"gpu": (pytest.mark.gpu,), **dict.fromkeys(quick, ())}
    return [pytest.param(name, marks=marks.get(name, (pytest.mark.slow,))) for name in names]


# For a test with workers whose row ``forkserver`` belongs to the quick suite.
forkserver_too = pytest.mark.parametrize("backend", parameters(*BACKENDS, quick=(QUICK, "forkserver")), indirect=True)


@dataclasses.dataclass
class Outcome:
    """A case's value, exception and warnings, and the random generators' states afterwards."""

    value: Any
    exception: Exception | None
    error: tuple[type, str] | None
    warnings: list[tuple[type, str]]
    random_states: tuple[Any, ...]

    @classmethod
    def of(cls, case: Case, loader: Callable[..., DataLoader[Any]]) -> Outcome:
        torch.manual_seed(20)
        random.seed(21)
        np.random.seed(22)
        value, exception, error = None, None, None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                value = case(loader)
            except Exception as raised:
                error = type(raised), normal(str(raised))
                exception = raised.with_traceback(None)  # frames would keep loaders alive
        said = [(warning.category, normal(str(warning.message))) for warning in caught]
        # Python 3.12 warns about fork() in a process with threads, and only one of the loaders may have threads.
        said = [(category, text) for category, text in said if "use of fork() may lead to deadlocks" not in text]
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()
        return cls(value, exception, error, said, states)


def raised_by(function: Callable[[], Any]) -> Exception:
    """Return the exception that ``function`` raises.

    Drops the frames, which would keep iterators and their workers alive.
    """
    try:
        function()
    except Exception as error:
        return error.with_traceback(None)
    raise AssertionError("nothing was raised")


_OURS = re.escape(str(Path(fastload.__file__).parent))  # a clone's own folder may have the same name
_OUR_FRAME = re.compile(rf'^  File "{_OURS}/[^"]*", line \d+, in .*\n(?:    .*\n)*', re.MULTILINE)


def normal(text: str) -> str:
    """Remove what may differ between runs: addresses, process ids, our name, our frames."""
    text = _OUR_FRAME.sub("", text)
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    text = re.sub(r"pid(\(s\))? [\d, ]+", r"pid\1 …", text)
    return text.replace("FastLoader", "DataLoader")


def assert_same(got: Any, expected: Any, where: str = "value", *, strides: bool = False) -> None:
    """Require equal types, containers, attributes, dtypes and bits, recursively; optionally strides."""
    assert type(got) is type(expected), f"{where}: {type(got)} is not {type(expected)}"
    if isinstance(expected, torch.Tensor):
        assert (got.dtype, got.layout) == (expected.dtype, expected.layout), where
        assert got.requires_grad == expected.requires_grad, where
        if expected.is_nested:
            assert_same(list(got.unbind()), list(expected.unbind()), where)
            return
        assert got.shape == expected.shape, where
        if expected.is_meta or type(expected).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            assert got.device == expected.device, where
            return
        assert not strides or got.layout != torch.strided or got.stride() == expected.stride(), where
        if expected.layout != torch.strided:
            got, expected = got.to_dense(), expected.to_dense()
        assert torch.equal(got.detach().cpu(), expected.detach()), where
    elif isinstance(expected, torch.UntypedStorage):
        assert list(got) == list(expected), where
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype, where
        np.testing.assert_array_equal(got, expected, where)
    elif isinstance(expected, collections.abc.Mapping):
        assert list(got) == list(expected), where
        for key in expected:
            assert_same(got[key], expected[key], f"{where}[{key!r}]", strides=strides)
    elif isinstance(expected, collections.abc.Sequence) and not isinstance(expected, str | bytes | range):
        assert len(got) == len(expected), where
        for index in range(len(expected)):
            assert_same(got[index], expected[index], f"{where}[{index}]", strides=strides)
    elif dataclasses.is_dataclass(expected) and not isinstance(expected, type):
        for field in dataclasses.fields(expected):
            assert_same(
                getattr(got, field.name), getattr(expected, field.name), f"{where}.{field.name}", strides=strides
            )
    elif not hasattr(expected, "__dict__"):
        assert got == expected, where
    if hasattr(expected, "__dict__") and not isinstance(expected, torch.Tensor | type) and not callable(expected):
        assert_same(vars(got), vars(expected), f"{where}.__dict__", strides=strides)
