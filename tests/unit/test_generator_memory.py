"""States of Python's and NumPy's generators, read from memory."""

from __future__ import annotations

import _random
import random
import threading
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastload.engines import generator_memory
from fastload.engines.generator_memory import numpy_now, python_now
from fastload.pipeline.python_stream import numpy_bytes, python_bytes

WHOLE = {random.Random.__basicsize__, np.random.RandomState.__basicsize__}


def find_again(name: str) -> Any:
    return getattr(generator_memory, name).__wrapped__()


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


class _Below(_random.Random):
    def getstate(self) -> Any:
        return random.Random(1).getstate()[1]


@pytest.mark.parametrize("bases", [(random.Random,), (random.Random, _Below)])
def test_a_subclass_of_random_is_asked(monkeypatch, bases):
    own = {"getstate": lambda self: random.Random(1).getstate()} if len(bases) == 1 else {}
    monkeypatch.setattr(random, "getstate", type("Own", bases, own)(2).getstate)
    assert python_now() == python_bytes(random.Random(1).getstate())


def test_another_method_of_pythons_generator_is_asked(monkeypatch):
    method = MethodType(lambda generator: random.Random(1).getstate(), random._inst)
    monkeypatch.setattr(random, "getstate", method)
    assert python_now() == python_bytes(random.Random(1).getstate())


def test_a_subclass_of_random_state_is_asked(monkeypatch):
    class Own(np.random.RandomState):
        def get_state(self, legacy: bool = True) -> Any:
            return np.random.RandomState(1).get_state()

    monkeypatch.setattr(np.random, "get_state", Own(2).get_state)
    assert numpy_now() == numpy_bytes(np.random.RandomState(1).get_state())


@pytest.mark.parametrize("name", ["_place_in_random", "_gauss_in_random_state"])
def test_words_that_are_not_found_are_asked_for(monkeypatch, name):
    read: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(generator_memory.ctypes, "string_at", lambda address, size: bytes(read.append(size) or size))
        assert find_again(name) is None
    assert set(read) <= WHOLE  # nothing beside the object
    monkeypatch.setattr(generator_memory, name, lambda: None)
    assert python_now() == python_bytes(random.getstate())
    assert numpy_now() == numpy_bytes(np.random.get_state())


@pytest.fixture
def put_back_bits():
    own = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(own)


@pytest.mark.usefixtures("put_back_bits")
def test_a_bit_generator_of_the_users_own_is_read_or_asked():
    np.random.set_bit_generator(np.random.MT19937(5))
    np.random.standard_normal(3)
    assert numpy_now() == numpy_bytes(np.random.get_state())

    class Own(np.random.MT19937):
        @property
        def state(self) -> Any:
            return np.random.MT19937(1).state

    np.random.set_bit_generator(Own(2))
    assert numpy_now() == numpy_bytes(np.random.get_state())


@pytest.mark.usefixtures("put_back_bits")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["PCG64", "Philox", "SFC64"])
def test_a_bit_generator_of_another_kind_is_refused_without_numpys_warning(kind):
    np.random.set_bit_generator(getattr(np.random, kind)(5))
    with pytest.raises(TypeError, match=f"must be MT19937.*got {kind}"):
        numpy_now()


def test_numpys_state_is_not_read_while_another_thread_draws():
    read = []
    with np.random.get_bit_generator().lock:  # as NumPy holds it
        thread = threading.Thread(target=lambda: read.append(numpy_now()))
        thread.start()
        thread.join(0.2)
        assert not read
        np.random.random()
        expected = numpy_bytes(np.random.get_state())
    thread.join()
    assert read == [expected]


@pytest.mark.parametrize("name", ["_place_in_random", "_gauss_in_random_state"])
def test_memory_is_read_in_cpython_with_its_lock_only(monkeypatch, name):
    monkeypatch.setattr(generator_memory.ctypes, "string_at", lambda address, size: pytest.fail("memory was read"))
    without = {"implementation": SimpleNamespace(name="cpython"), "_is_gil_enabled": lambda: False}
    for other in ({"implementation": SimpleNamespace(name="pypy")}, without):
        monkeypatch.setattr(generator_memory, "sys", SimpleNamespace(**other))
        assert find_again(name) is None


FINDERS = pytest.mark.parametrize(
    ("name", "size"), [("_place_in_random", 625 * 4), ("_gauss_in_random_state", 16)], ids=["python", "numpy"]
)


@FINDERS
def test_words_that_are_elsewhere_in_a_second_generator_are_asked_for(monkeypatch, name, size):
    whole, shifts = generator_memory.ctypes.string_at, []

    def string_at(address: int, length: int) -> bytes:
        if length in WHOLE:
            shifts.append(4 * len(shifts))
            return bytes(shifts[-1]) + whole(address, length)
        return whole(address - shifts[-1] if length == size else address, length)

    monkeypatch.setattr(generator_memory.ctypes, "string_at", string_at)
    assert find_again(name) is None
    assert len(shifts) > 1


@FINDERS
def test_words_with_others_beside_them_are_asked_for(monkeypatch, name, size):
    whole = generator_memory.ctypes.string_at
    monkeypatch.setattr(
        generator_memory.ctypes,
        "string_at",
        lambda address, length: bytes(length) if length == size else whole(address, length),
    )
    assert find_again(name) is None


def test_a_random_state_with_another_bit_generator_of_its_own_is_asked(monkeypatch):
    monkeypatch.setattr(np.random, "MT19937", type("Other", (), {}))
    assert find_again("_gauss_in_random_state") is None
