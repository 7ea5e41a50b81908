"""The core draws as Python's ``random`` and NumPy's legacy generator do."""

from __future__ import annotations

import math
import random
import sys

import numpy as np
import pytest
import torch
from torch.utils.data._utils import worker

from fastload import _core
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed import python_stream
from fastload.pipeline.installed.python_stream import check_others, numpy_bytes, numpy_state, python_bytes, python_state
from fastload.randomness import in_memory
from fastload.randomness.by_sample import random_states_kept
from fastload.randomness.generators import set_state, state_now, state_of_seed, streams_of_workers

SEEDS = [*range(5), 19650218, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40 + 7, 2**63 - 1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["PCG64", "Philox", "SFC64"])
def test_a_bit_generator_of_another_kind_is_refused_without_numpys_warning(kind):
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(getattr(np.random, kind)(5))
    try:
        with pytest.raises(TypeError, match=f"must be MT19937.*got {kind}"):
            state_now(others=True)
    finally:
        np.random.set_bit_generator(own)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", SEEDS)
def test_python_draws(seed):
    core, python = _core.PythonRandom(seed), random.Random(seed)
    assert core.get_state() == python_bytes(python.getstate())
    for i in range(2000):
        count = 1 + (i * i) % (2 ** (i % 32))
        assert core.randbelow(count) == python.randrange(count)
        assert core.random() == python.random()
        assert core.uniform(-0.3, i) == python.uniform(-0.3, i)
        assert core.gauss(9, 0.5) == python.gauss(9, 0.5)
        if i % 7 == 0:
            assert core.gauss(0, 1) == python.gauss(0, 1)
        assert _core.PythonRandom.exp(i / 999 - 1) == math.exp(i / 999 - 1)
    assert core.get_state() == python_bytes(python.getstate())


@pytest.mark.matrix
@pytest.mark.parametrize("seed", SEEDS)
def test_numpy_draws(seed):
    core, legacy = _core.NumpyRandom(seed % 2**32), np.random.RandomState(seed % 2**32)
    for i in range(1000):
        count = 1 + (i * i) % (2 ** (i % 31))
        assert [core.randint(count) for _ in range(3)] == legacy.choice(count, 3).tolist()
        assert core.randint(count) == legacy.randint(0, count)
        assert core.random() == legacy.random_sample()
    assert core.get_state() == numpy_bytes(legacy.get_state())


def test_kept_normals_are_part_of_the_states():
    python, legacy = random.Random(1), np.random.RandomState(1)
    python.gauss(0, 1)
    legacy.normal()
    core, numpy = _core.PythonRandom(0), _core.NumpyRandom(0)
    core.set_state(python_bytes(python.getstate()))
    numpy.set_state(numpy_bytes(legacy.get_state()))
    assert core.gauss(2, 3) == python.gauss(2, 3)
    assert core.gauss(2, 3) == python.gauss(2, 3)
    assert python_state(core.get_state()) == python.getstate()
    theirs = np.random.RandomState(9)
    theirs.set_state(numpy_state(numpy.get_state()))
    assert theirs.normal() == legacy.normal()


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="objects have no addresses")
def test_states_in_memory_are_those_that_the_generators_return():
    with random_states_kept():
        for seed in SEEDS:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            for _ in range(4):  # with a normal number that is left, and without
                assert in_memory.python_now() == python_bytes(random.getstate())
                assert in_memory.numpy_now() == numpy_bytes(np.random.get_state())
                random.gauss(0, 1)
                np.random.normal()
            np.random.set_state(("MT19937", np.arange(624), seed % 624, 1, seed / 7))
            random.setstate((3, (*range(624), seed % 624), seed / 7))
            assert in_memory.python_now() == python_bytes(random.getstate())
            assert in_memory.numpy_now() == numpy_bytes(np.random.get_state())


def test_generators_that_do_not_lie_where_usual_are_asked(monkeypatch):
    expected = state_now(others=True)
    with monkeypatch.context() as patched:
        patched.setattr(in_memory, "_python_words_at", lambda: None)
        patched.setattr(in_memory, "_numpy_normal_at", lambda: None)
        assert in_memory.python_now() is None
        assert in_memory.numpy_now() is None
        assert state_now(others=True) == expected
    others = random.Random(3), np.random.RandomState(3)
    monkeypatch.setattr(random, "getstate", lambda: others[0].getstate())
    monkeypatch.setattr(np.random, "get_state", lambda **rest: others[1].get_state(**rest))
    changed = python_bytes(others[0].getstate()) + numpy_bytes(others[1].get_state())
    assert state_now(others=True).endswith(changed)


@pytest.mark.parametrize("at", [2496, 2500])
def test_an_invalid_state_is_refused(at):
    state = bytearray(_core.PythonRandom(0).get_state())
    state[at + 2] = 1  # 65536
    core = _core.PythonRandom(5)
    with pytest.raises(ValueError, match="get_state"):
        core.set_state(bytes(state))
    assert core.get_state() == _core.PythonRandom(5).get_state()
    with pytest.raises(ValueError, match="get_state"):
        core.set_state(bytes(state[:-1]))
    whole = state_of_seed(5, others=True)
    with pytest.raises(ValueError, match="get_state"):
        _core.Generator(0).set_state(whole[: _core.Generator.STATE_BYTES] + bytes(state) * 2)


def test_the_states_of_all_three_are_handed_over_and_back():
    with random_states_kept():
        for seed in (1, 2**40 + 7):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            assert state_now(others=True) == state_of_seed(seed, others=True)
            assert state_now(others=False) == state_of_seed(seed, others=False)
            random.gauss(0, 1)
            np.random.normal()
            state = state_now(others=True)
            drawn = torch.rand(1).item(), random.gauss(0, 1), random.random(), np.random.normal(), np.random.rand()
            set_state(state)
            assert state_now(others=True) == state
            again = torch.rand(1).item(), random.gauss(0, 1), random.random(), np.random.normal(), np.random.rand()
            assert drawn == again
            before = random.getstate()
            set_state(state_of_seed(3, others=False))
            assert random.getstate() == before


def test_a_stream_starts_as_torchs_worker_does():
    plan = _core.DrawPlan()
    branches = [[("resize", {"height": 1, "width": 1 + k})] for k in range(9)]
    for kind in ("python_choose", "numpy_choose"):
        plan.add(kind, branches=branches)
    pool = _core.Pool(1)
    out = np.empty((1, 1, 1, 3), np.uint8)
    with random_states_kept():
        random.seed(100 + 3)
        torch.manual_seed(100 + 3)
        np.random.seed(worker._generate_state(100, 3))
        wanted = state_now(others=True)
    stream = streams_of_workers(100, [None] * 4, others=True)[3]
    job = pool.submit([b"no JPEG"], out, plan=plan, stream=stream)
    assert job.wait() == "requested"
    assert job.generator_before(0) == wanted
    pool.close()


def test_a_plan_that_draws_from_others_needs_their_states():
    plan = _core.DrawPlan()
    plan.add("python_choose", branches=[[("resize", {"height": 1, "width": 1})]])
    assert plan.draw(_core.Generator(1), 9, 9)[0] == "crop_too_large"
    seeded = _core.Generator(1)
    seeded.seed_others(1)
    assert plan.draw(seeded, 9, 9)[0] == "ok"


@pytest.mark.parametrize("draw", ["random", "gauss", "uniform", "exp", "get_state"])
def test_other_draws_of_python_are_refused(monkeypatch, draw):
    python_stream._draws_alike.cache_clear()
    check_others()

    class Other(_core.PythonRandom):
        pass

    original = getattr(_core.PythonRandom, draw)

    def wrong(*arguments):
        drawn = original(*arguments)
        return drawn[:-1] + b"?" if draw == "get_state" else drawn + 1e-15

    setattr(Other, draw, staticmethod(wrong) if draw == "exp" else wrong)
    monkeypatch.setattr(_core, "PythonRandom", Other)
    python_stream._draws_alike.cache_clear()
    with pytest.raises(Refused, match="otherwise here than the native core"):
        check_others()
    python_stream._draws_alike.cache_clear()


def test_another_generator_or_seeding_is_refused(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(random, "_inst", type("Other", (random.Random,), {})())
        with pytest.raises(Refused, match="from another generator than its own"):
            check_others()
    kept = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.raises(Refused, match="bit generator was replaced"):
            check_others()
    finally:
        np.random.set_bit_generator(kept)
    monkeypatch.setattr(worker, "_worker_loop", lambda: None)
    with pytest.raises(Refused, match="seeds Python and NumPy in workers otherwise"):
        check_others()


@pytest.mark.parametrize("kind", ["random_erasing", "python_erasing"])
def test_an_erasing_stands_at_the_end(kind):
    plan = _core.DrawPlan()
    with pytest.raises(ValueError, match="an erasing must come last"):
        plan.add("choose", branches=[[(kind, {"p": 0.5})]])
    plan.add(kind, p=0.5)
    with pytest.raises(ValueError, match="nothing can follow an erasing"):
        plan.add("horizontal_flip", p=0.5)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"scale": (0.1, 21.0)}, "areas"),
        ({"logs": (-21.0, 0.0)}, "areas"),
        ({"count": -1}, "counts"),
        ({"count": 1, "most_count": 1001}, "counts"),
        ({"noise": "color"}, "no such noise"),
    ],
)
def test_an_erasing_that_python_would_not_make_is_refused(fields, reason):
    with pytest.raises(ValueError, match=reason):
        _core.DrawPlan().add("python_erasing", **fields)


def test_a_box_without_pixels_has_no_noise_unless_of_one_color():
    """Its noise is drawn all the same, as timm does."""
    for noise, drawn in (("pixels", False), ("colors", True), ("none", False)):
        plan, core, before = _core.DrawPlan(), _core.Generator(3), _core.Generator(3)
        core.seed_others(3)
        plan.add("python_erasing", p=1.0, scale=(0.0, 0.0), logs=(0.0, 0.0), noise=noise)
        ((_, _, height, width),), state = plan.draw_erased(core, 9, 8)
        assert (height, width) == (0, 0)
        assert state == (None if noise == "none" else before.get_state())
        assert core.get_state().startswith(before.get_state()) != drawn
