"""States of Python's and NumPy's generators, read from memory."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fastload.engines import generator_memory
from fastload.engines.generator_memory import numpy_now, python_now
from fastload.pipeline.python_stream import numpy_bytes, python_bytes


@pytest.fixture(autouse=True)
def put_back():
    python, numpys = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpys)


def test_what_is_read_is_what_the_methods_return(monkeypatch):
    draws = [random.random, lambda: random.gauss(0, 1), lambda: random.seed(5), lambda: np.random.seed(5)]
    draws += [lambda count=count: np.random.standard_normal(count) for count in (1, 2, 3, 700)]
    chosen = random.Random(3)
    for _ in range(400):
        chosen.choice(draws)()
        assert python_now() == python_bytes(random.getstate())
        assert numpy_now() == numpy_bytes(np.random.get_state())
    assert generator_memory._place_in_random() is not None
    assert generator_memory._gauss_in_random_state() is not None


def test_other_generators_are_asked_by_their_methods(monkeypatch):
    other, others = random.Random(7), np.random.RandomState(7)
    monkeypatch.setattr(random, "getstate", lambda: other.getstate())
    monkeypatch.setattr(np.random, "get_state", lambda: others.get_state())
    assert python_now() == python_bytes(other.getstate())
    assert numpy_now() == numpy_bytes(others.get_state())


def test_a_subclass_of_random_is_asked(monkeypatch):
    class Own(random.Random):
        def getstate(self) -> Any:
            return random.Random(1).getstate()

    monkeypatch.setattr(random, "getstate", Own(2).getstate)
    assert python_now() == python_bytes(random.Random(1).getstate())


def test_a_subclass_of_random_state_is_asked(monkeypatch):
    class Own(np.random.RandomState):
        def get_state(self, legacy: bool = True) -> Any:
            return np.random.RandomState(1).get_state()

    monkeypatch.setattr(np.random, "get_state", Own(2).get_state)
    assert numpy_now() == numpy_bytes(np.random.RandomState(1).get_state())


@pytest.mark.parametrize("name", ["_place_in_random", "_gauss_in_random_state"])
def test_words_that_are_not_found_are_asked_for(monkeypatch, name):
    find: Any = getattr(generator_memory, name)
    with monkeypatch.context() as patch:
        patch.setattr(generator_memory.ctypes, "string_at", lambda address, size: bytes(size))
        assert find.__wrapped__() is None
    monkeypatch.setattr(generator_memory, name, lambda: None)
    assert python_now() == python_bytes(random.getstate())
    assert numpy_now() == numpy_bytes(np.random.get_state())
