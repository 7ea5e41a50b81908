"""Functions that torch.compile compiles get deferred tensors as any others."""

import sys
import threading

import pytest
import torch
import torch._dynamo
from deferred_images import deferred, expected, of_levels, table
from photos import pixels
from torch._dynamo import eval_frame
from torch.overrides import _get_current_function_mode_stack

from fastload._compare import same_bits
from fastload.deferred.calls import compiled
from fastload.deferred.content import Content
from fastload.deferred.functions import Deferral
from fastload.deferred.memory import is_deferred
from fastload.memory import unfilled

OF = Content((of_levels(pixels(1, 48, 60), (0, 0, 60, 48)),), table(), planar=True)
LIKE = expected(OF)[0]


def broken(x):
    y = x * 2
    print(end="")
    return y.clone() + 1


def raising(x):
    raise ValueError(x.shape)


def disabled(x):
    return plainly(x * 2) - 1


@torch._dynamo.disable
def plainly(x):
    return x.add(5)


COMPILED = {
    "whole": torch.compile(lambda x: x * 2 + 1, fullgraph=True, backend="eager"),
    "in parts": torch.compile(broken, backend="eager"),
    "partly disabled": torch.compile(disabled, backend="eager"),
    "nested": torch.compile(lambda x: torch.compile(lambda x: x * 2, backend="eager")(x) - 3, backend="eager"),
    "raising": torch.compile(raising, backend="eager"),
    "not in one": torch.compile(broken, fullgraph=True, backend="eager"),
}


@pytest.fixture
def deferral():
    torch._dynamo.reset()
    made = Deferral()
    yield made
    made._replaced.undo()
    unfilled.serve(None)
    torch._dynamo.reset()


def outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error), str(error).partition("\n")[0]


@pytest.mark.parametrize("name", COMPILED)
def test_they_run_as_ever_and_what_follows_is_recorded(deferral, name):
    call = COMPILED[name]
    theirs = outcome(lambda: call(LIKE))
    with deferral:
        deferral._record()
        for _ in range(2):
            ours = outcome(lambda: call(deferred(OF, single=True)))
            assert _get_current_function_mode_stack() == [deferral.recorder]
        x = deferred(OF, single=True)
        after = x * 2
    assert is_deferred(after)
    assert _get_current_function_mode_stack() == []
    if isinstance(theirs, torch.Tensor):
        assert same_bits(ours, theirs)
    else:
        assert ours == theirs


def test_they_are_compiled_once_for_all_batches(deferral):
    compiles = torch._dynamo.testing.CompileCounter()
    call = torch.compile(lambda x: x * 2 + 1, backend=compiles)
    call(LIKE)
    with deferral:
        deferral._record()
        call(deferred(OF, single=True))
    assert compiles.frame_count == 1


def test_other_threads_and_batches_that_are_not_recorded_have_none(monkeypatch, deferral):
    seen = []

    def other():
        seen.append(same_bits(COMPILED["whole"](LIKE), LIKE * 2 + 1))
        seen.append(_get_current_function_mode_stack())

    with deferral:
        deferral._record()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        seen.append(_get_current_function_mode_stack())
    monkeypatch.setattr(deferral, "_record", lambda: None)  # as without deferred tensors
    with deferral:
        other()
    assert seen == [True, [], [deferral.recorder], True, []]


def test_what_takes_it_off_is_not_compiled(deferral):
    def frames():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        COMPILED["in parts"](LIKE)
        return dict(torch._dynamo.utils.counters["frames"])

    usual = frames()
    with deferral:
        deferral._record()
        assert frames() == usual


def test_it_is_away_no_more_in_the_next_batch(deferral):
    with deferral:
        deferral._record()
        deferral._leave(1)
    with deferral:
        deferral._record()
        assert _get_current_function_mode_stack() == [deferral.recorder]
        deferral._come_back(1)
        assert _get_current_function_mode_stack() == [deferral.recorder]


@pytest.mark.parametrize("name", ["skip_code", "set_eval_frame"])
def test_another_torch_is_left_alone(monkeypatch, name):
    monkeypatch.delattr(eval_frame, name)
    assert not [*compiled.functions(print, print)]


def test_without_it_nothing_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, compiled._HOME)
    assert not compiled.is_imported()
