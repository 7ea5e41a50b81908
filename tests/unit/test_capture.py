"""Test when a profiler's window opens and closes, and what a tool records."""

from __future__ import annotations

import gc
import gzip
import itertools
import json
import os
import subprocess
import sys
import textwrap
import weakref

import pytest
import torch
from costs import in_calls
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from fastload import FastLoader, annotate_modules, capture
from fastload.memory.gpu import GpuMemory
from fastload.profiling.recording import capture as window_module
from fastload.profiling.recording.capture import CaptureFromEnvironment, CaptureIterator


class Stream(IterableDataset):
    def __init__(self, count=6):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


class Recorder:
    """Stands for CUDA: notes what happens to its profiler between a loop's batches."""

    def __init__(self, monkeypatch):
        self.log = []
        monkeypatch.setattr(window_module, "_has_cuda", lambda: True)
        monkeypatch.setattr(torch.cuda.profiler, "start", lambda: self.log.append("start"))
        monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: self.log.append("stop"))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        push, pop = window_module.push, window_module.pop
        monkeypatch.setattr(window_module, "push", lambda step: self.log.append("(") or push(step))
        monkeypatch.setattr(window_module, "pop", lambda step: self.log.append(")") or pop(step))

    def loop(self, batches, stop_at=None):
        for batch in batches:
            self.log.append(batch)
            if batch == stop_at:
                break
        return self

    def __str__(self):
        return " ".join(map(str, self.log))


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)


@pytest.mark.parametrize(
    ("warmup", "steps", "end", "log"),
    [
        (2, 2, False, "0 1 start ( 2 ) ( 3 ) stop 4 5"),
        (0, 1, False, "start ( 0 ) stop 1 2 3 4 5"),
        (0, 6, False, "start ( 0 ) ( 1 ) ( 2 ) ( 3 ) ( 4 ) ( 5 ) stop"),
        (4, 9, False, "0 1 2 3 start ( 4 ) ( 5 ) stop"),
        (6, 1, False, "0 1 2 3 4 5"),
        (9, 9, False, "0 1 2 3 4 5"),
        (2, 2, True, "0 1 start ( 2 ) ( 3 ) stop"),
        (4, 9, True, "0 1 2 3 start ( 4 ) ( 5 ) stop"),
    ],
)
def test_the_profiler_runs_for_the_steps_after_the_warmup(recorder, warmup, steps, end, log):
    batches = capture(list(range(6)), warmup, steps, end=end)
    assert str(recorder.loop(batches)) == log
    assert batches.captured == log.count("(")


def test_a_loop_that_breaks_closes_the_window(recorder):
    batches = capture(list(range(6)), 1, 3)
    assert str(recorder.loop(batches, stop_at=2)) == "0 start ( 1 ) ( 2 ) stop"
    recorder.log.clear()
    assert str(recorder.loop(batches)) == "0 1 2 3 4 5"  # there is one window


def test_an_exception_in_the_loop_closes_the_window(recorder):
    def loop():
        for _ in capture(range(6), 1, 3):
            if "start" in recorder.log:
                raise KeyError

    with pytest.raises(KeyError):
        loop()
    assert str(recorder) == "start ( ) stop"


def test_an_exception_of_the_loader_closes_the_window_and_is_not_the_end_of_the_loader(recorder):
    class Fails:
        def __init__(self):
            self.number = -1

        def __iter__(self):
            return self

        def __next__(self):
            self.number += 1
            if self.number == 2:
                raise ValueError("in the loader")
            return self.number

    iterator = iter(capture(Fails(), 1, 3))
    assert [next(iterator), next(iterator)] == [0, 1]
    with pytest.raises(ValueError, match="in the loader"):
        next(iterator)
    assert str(recorder) == "start ( ) ( ) stop"
    assert next(iterator) == 3


def test_batches_are_counted_over_several_loops(recorder):
    batches = capture(list(range(3)), 4, 3)
    for _ in range(4):
        recorder.loop(batches)
    assert str(recorder) == "0 1 2 0 start ( 1 ) ( 2 ) stop 0 1 2 0 1 2"


def test_a_warmup_as_long_as_the_epoch_opens_the_window_in_the_next(recorder):
    batches = capture(list(range(3)), 3, 2)
    for _ in range(2):
        recorder.loop(batches)
    assert str(recorder) == "0 1 2 start ( 0 ) ( 1 ) stop 2"


def test_a_loader_that_does_not_know_its_length_is_asked_for_the_batch_that_is_not_there(recorder):
    assert str(recorder.loop(capture(iter(range(3)), 1, 9))) == "0 start ( 1 ) ( 2 ) ( ) stop"
    loader = DataLoader(Stream(4), batch_size=None)
    assert capture(loader, 1, 2, end=True).captured == 0
    assert loader._IterableDataset_len_called is None  # torch would hold it to what it said


def test_the_window_closes_with_close_and_with_the_iterator(recorder):
    batches = capture(list(range(6)), 0, 3)
    iterator = iter(batches)
    next(iterator)
    batches.close()
    batches.close()
    assert str(recorder) == "start ( ) stop"
    assert list(iterator) == [1, 2, 3, 4, 5]
    recorder.log.clear()
    other = iter(capture(list(range(6)), 0, 3))
    next(other)
    del other
    assert str(recorder) == "start ( ) stop"


def test_of_two_windows_at_once_the_later_stays_shut(recorder):
    first = capture(list("abcdef"), 1, 2)
    second = capture(list(range(6)), 0, 4, end=True)
    with pytest.warns(RuntimeWarning, match="another window is open in this process, so this one stays shut") as caught:
        seen = [first_batch + str(second_batch) for first_batch, second_batch in zip(first, second, strict=False)]
    assert seen == ["a0", "b1", "c2", "d3"]
    assert caught[0].filename == __file__
    assert (first.captured, second.captured) == (0, 4)
    assert (recorder.log.count("start"), recorder.log.count("stop")) == (1, 1)


def test_two_windows_one_after_the_other_both_open(recorder):
    for _ in range(2):
        recorder.loop(capture(list(range(3)), 1, 1))
    assert str(recorder) == "0 start ( 1 ) stop 2 0 start ( 1 ) stop 2"


def test_ended_loops_stay_ended(recorder):
    batches = capture(list(range(6)), 1, 2, end=True)
    assert len(batches) == 3
    assert list(batches) == [0, 1, 2]
    assert (list(batches), len(batches)) == ([], 0)
    assert len(capture(list(range(6)), 1, 2)) == 6
    assert len(capture(list(range(2)), 5, 5, end=True)) == 2


@pytest.mark.each_value
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("loader", ["DataLoader", "FastLoader"])
def test_a_tool_sees_each_step_with_the_number_of_its_batch(traced, loader, method):
    trace = traced(f"""
import torch
from torch.utils.data import DataLoader
from fastload import FastLoader, annotate, capture
if __name__ == "__main__":
    loader = {loader}(range(16), 2, num_workers=2, multiprocessing_context={method!r})
    try:
        for batch in capture(loader, warmup=2, steps=4):
            with annotate(message="train"):
                if 9 in batch:
                    raise KeyError
    except KeyError:
        with annotate(message="handler"):
            pass
""")
    steps = trace.ranges("step")
    assert [(step.payload, step.payload_type, step.parents) for step in steps] == [
        (number, "int64", ()) for number in (2, 3, 4)
    ]
    assert len({step.pid for step in steps}) == 1
    assert [found.parents for found in trace.ranges("train")] == [()] * 2 + [("step",)] * 3
    assert [found.parents for found in trace.ranges("handler")] == [()]
    assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(steps))


@pytest.mark.parametrize(
    "loader", [DataLoader(range(12), 2), FastLoader(range(12), 2, device="cpu")], ids=["torch", "ours"]
)
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_torch_profiler_writes_a_trace_of_the_window_alone(tmp_path, loader, name):
    model = nn.Sequential(nn.Linear(2, 2))
    annotation = annotate_modules(model)
    batches = capture(loader, warmup=1, steps=2, trace=tmp_path / name)
    for batch in batches:
        model(batch.float()).sum().backward()
        assert bool(model[0]._forward_hooks) == torch.autograd._profiler_enabled()
    annotation.remove()
    path = tmp_path / name
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    names = [event.get("name") for event in json.loads(text)["traceEvents"]]
    assert names.count("step") == names.count("Sequential") == names.count("0 backward") == 2
    assert batches.profile.key_averages() is not None
    assert "aten::linear" in names


def test_a_running_torch_profiler_is_left_alone(tmp_path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        batches = capture(range(4), 1, 2, trace=tmp_path / "trace.json")
        with pytest.warns(RuntimeWarning, match="running already, so no trace is written; leave trace out") as caught:
            list(batches)
    assert caught[0].filename == __file__
    assert not (tmp_path / "trace.json").exists()
    assert [event.name for event in profile.events()].count("step") == 2


def test_a_trace_that_cannot_be_written_does_not_end_the_loop(tmp_path):
    (tmp_path / "gone").mkdir()
    batches = capture(range(4), 1, 2, trace=tmp_path / "gone" / "trace.json")
    (tmp_path / "gone").rmdir()
    with pytest.warns(RuntimeWarning, match="could not write .*trace.json; the program goes on"):
        assert list(batches) == [0, 1, 2, 3]


def test_ranks_write_traces_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    list(capture(range(3), 1, 1, trace=tmp_path / "trace.json.gz"))
    assert [path.name for path in tmp_path.iterdir()] == ["trace.rank1.json.gz"]


def test_the_iterator_has_what_the_loaders_own_has():
    loader = DataLoader(range(6), num_workers=1)
    iterator = iter(capture(loader, 1, 1))
    assert len(iterator) == 6
    assert len(iterator._workers) == 1
    next(iterator)
    assert iterator._num_yielded == 1
    assert bool(iter(capture(iter([]), 1, 1)))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = iterator.nothing
    del iterator


def test_nothing_is_kept_alive():
    loader = DataLoader(range(6))
    alive = weakref.ref(loader)
    for _ in capture(loader, 1, 1):
        pass
    del loader
    gc.collect()
    assert alive() is None


def test_outside_the_window_a_batch_costs_next_to_nothing():
    source = [None] * 1000

    def calls_a_batch(batches):
        return in_calls(lambda: [None for _ in batches], number=1) / len(source)

    over = capture(source, 0, 1)
    list(over)
    assert calls_a_batch(capture(source, warmup=10**9)) < 40  # 15 to 25 were measured
    assert calls_a_batch(over) < calls_a_batch(source) + 2


@pytest.mark.parametrize(
    ("arguments", "more", "error", "message"),
    [
        ((3,), {}, TypeError, "capture takes an iterable of batches, got int"),
        (([], -1), {}, ValueError, "warmup must be >= 0, got -1"),
        (([], 1.5), {}, TypeError, "warmup must be an integer, got 1.5"),
        (([], True), {}, TypeError, "warmup must be an integer, got True"),
        (([], 1, 0), {}, ValueError, "steps must be >= 1, got 0"),
        (([], 1, "2"), {}, TypeError, "steps must be an integer, got '2'"),
        (
            ([],),
            {"trace": "no/such/folder/trace.json"},
            FileNotFoundError,
            "in a folder that exists, got no/such.*; make ",
        ),
    ],
)
def test_a_wrong_argument_says_what_a_right_one_is(arguments, more, error, message):
    with pytest.raises(error, match=message):
        capture(*arguments, **more)


# --- from outside


def run_script(folder, source, *options, **variables):
    script = folder / "script.py"
    script.write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "fastload", "run", *options, str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=170)


EPOCHS = """
    import torch
    from torch.utils.data import DataLoader

    if __name__ == "__main__":
        short = DataLoader(range(2))
        train = DataLoader(range(12), 2, num_workers=1, multiprocessing_context="fork")
        for epoch in range(2):
            print(sum(1 for batch in train), sum(1 for batch in short))
        print("the end")
"""


@pytest.mark.parametrize(
    ("window", "said"),
    [("3:2", "6 2\n6 2\nthe end\n"), ("3:2:end", "5 2\n0 2\nthe end\n"), ("3:2:exit", "")],
)
@pytest.mark.slow
def test_a_script_under_run_gets_one_window_at_the_first_loader_past_its_warmup(tmp_path, window, said):
    trace = tmp_path / "trace.json"
    done = run_script(tmp_path, EPOCHS, FASTLOAD_CAPTURE=window, FASTLOAD_CAPTURE_TRACE=str(trace))
    assert (done.returncode, done.stdout) == (0, said), done.stderr
    assert [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]].count("step") == 2


@pytest.mark.thorough
def test_a_script_that_is_too_short_for_its_window_is_told_at_its_end(tmp_path):
    done = run_script(tmp_path, EPOCHS, FASTLOAD_CAPTURE="9:5")
    assert done.returncode == 0
    assert "fastload: 3 of 5 steps were recorded: 9 warm-up steps and these take 14 batches" in done.stderr
    assert "and the longest loop ended after 12" in done.stderr


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ([4, 2], "0 of 3 steps were recorded: 5 warm-up steps and these take 8 batches of one loader, and the longest"),
        ([4, 2], "loop ended after 4; ask for fewer"),
        ([2, 7, 4], "2 of 3 steps were recorded: "),
        ([2, 7, 4], "loop ended after 7; ask for fewer"),
        ([2, 8], ""),
        ([], ""),
    ],
)
def test_loops_that_are_too_short_for_the_window_are_counted(capsys, lengths, said):
    outside = CaptureFromEnvironment("5:3")
    for length in lengths:
        assert len(list(outside.listening(DataLoader.__iter__)(DataLoader(range(length))))) == length  # one id for all
    outside.say_if_short()
    err = capsys.readouterr().err
    assert said in err
    assert bool(said) == bool(err)


@pytest.mark.thorough
def test_a_tool_sees_the_steps_of_a_script_under_run(tmp_path, traced):
    (tmp_path / "script.py").write_text(textwrap.dedent(EPOCHS))
    arguments = ["-m", "fastload", "run", "--explain", str(tmp_path / "script.py")]
    trace = traced(arguments, env={"FASTLOAD_CAPTURE": "1:9"})
    assert [step.payload for step in trace.ranges("step")] == [1, 2, 3, 4, 5]
    assert "script.py:9" in trace.stderr  # --explain still finds the loop


@pytest.mark.parametrize("text", ["", "10", "10:", "a:1", "1:2:3", "1:2:stop", "-1:2"])
def test_a_wrong_variable_says_what_a_right_one_is(text):
    with pytest.raises(ValueError, match=f"FASTLOAD_CAPTURE must be warmup:steps, .* such as 10:10, got '{text}'"):
        CaptureFromEnvironment(text)
    with pytest.raises(ValueError, match="steps must be >= 1"):
        CaptureFromEnvironment("1:0")


def test_workers_have_no_window():
    class Nested(IterableDataset):
        def __iter__(self):
            yield isinstance(listening(DataLoader(range(3))), CaptureIterator)

    outside = CaptureFromEnvironment("0:1")
    listening = outside.listening(DataLoader.__iter__)
    assert isinstance(listening(DataLoader(range(3))), CaptureIterator)
    assert list(DataLoader(Nested(), batch_size=None, num_workers=1, multiprocessing_context="fork")) == [False]


def test_the_gpus_memory_is_written_where_a_report_is_asked_for(tmp_path, recorder, monkeypatch):
    memory = GpuMemory(1, 2, 3, 4, 5, 6)
    monkeypatch.setattr(window_module, "gpu_memory", lambda: memory)
    recorder.loop(capture(range(4), 1, 2))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("FASTLOAD_CAPTURE_REPORT", str(tmp_path / "loader.json"))
    recorder.loop(capture(range(4), 1, 2))
    assert GpuMemory.from_dict(json.loads((tmp_path / "memory.json").read_text())) == memory
