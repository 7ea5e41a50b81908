"""``annotate`` emits ranges around any call, in every process, and restores the function."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import pickle
import traceback
import types

import pytest
import torch
from costs import in_calls

import fastload
from fastload import annotate
from fastload.nvtx import stages

KINDS = """
import asyncio, contextlib, functools
from fastload import annotate

class Base:
    def inherited(self):
        return "inherited"

class Kinds(Base):
    def method(self, path, *, times=1):
        return path * times
    @classmethod
    def of_class(cls):
        return cls
    @staticmethod
    def static(number):
        return number
    @property
    def attribute(self):
        return "attribute"
    @functools.cached_property
    def cached(self):
        return "cached"
    def failing(self):
        raise KeyError("from the body")
    def numbers(self, count):
        for number in range(count):
            yield number
        return "the end"
    async def wait(self, times):
        for _ in range(times):
            await asyncio.sleep(0)
        return times
    async def later(self, count):
        for number in range(count):
            await asyncio.sleep(0)
            yield number
    def super_method(self):
        return super().inherited()

async def gather(stream):
    return [item async for item in stream]
"""


def names(trace, **more):
    return [found.name for found in trace.ranges(**more)]


CALLS = [  # a method's name, a call, what that returns, the number of ranges
    ("method", "kinds.method('a', times=2)", "'aa'", 1),
    ("of_class", "kinds.of_class()", "Kinds", 1),
    ("of_class", "Kinds.of_class()", "Kinds", 1),
    ("static", "Kinds.static(3)", "3", 1),
    ("attribute", "kinds.attribute", "'attribute'", 1),
    ("cached", "kinds.cached * 2 and kinds.cached", "'cached'", 1),
    ("inherited", "kinds.inherited()", "'inherited'", 1),
    ("super_method", "kinds.super_method()", "'inherited'", 1),
    ("numbers", "list(kinds.numbers(3))", "[0, 1, 2]", 4),
    ("wait", "asyncio.run(kinds.wait(2))", "2", 3),
    ("later", "asyncio.run(gather(kinds.later(2)))", "[0, 1]", 5),
]


@pytest.mark.slow
def test_every_kind_of_callable_gets_its_range(traced):
    calls = [
        f"""
kinds = Kinds()
with annotate("__main__:Kinds.{name}"):
    assert {call} == {result}
kinds = Kinds()
assert {call} == {result}
"""
        for name, call, result, _ in CALLS
    ]
    found = traced(KINDS + "".join(calls)).ranges()
    wanted = [[f"Kinds.{name}"] * ranges for name, _, _, ranges in CALLS]  # and none after their removal
    assert [each.name for each in found] == [name for names in wanted for name in names]
    assert all(each.depth == 0 for each in found), "no range stays open while a generator or coroutine is suspended"


def test_an_inherited_method_is_annotated_for_the_class_that_was_named_alone(traced):
    trace = traced(
        KINDS
        + """
handle = annotate(Kinds, "inherited")
Base().inherited()
Kinds().inherited()
handle.remove()
assert "inherited" not in vars(Kinds)
"""
    )
    assert names(trace) == ["Kinds.inherited"]


FAILING = {
    "def": "failing()",
    "generator": "list(failing())",
    "async def": "asyncio.run(failing())",
    "async generator": "asyncio.run(gather(failing()))",
}


@pytest.mark.slow
def test_a_range_ends_when_the_call_raises(traced):
    cases = [(kind, error) for kind in FAILING for error in ("ValueError", "KeyboardInterrupt")]
    calls = [
        f"""
{"async def" if kind.startswith("async") else "def"} failing():
    {"yield 1" if "generator" in kind else "pass"}
    raise {error}("from the body")
with annotate("__main__:failing"), annotate(message="around"):
    try:
        {FAILING[kind]}
    except {error} as caught:
        print(caught)
with annotate(message="after"):
    pass
"""
        for kind, error in cases
    ]
    trace = traced(KINDS + "".join(calls))
    assert trace.stdout == "from the body\n" * len(cases)
    found, wanted = [(each.name, each.parents) for each in trace.ranges()], []
    for kind, _ in cases:
        inner = [("failing", ("around",))] * (2 if "generator" in kind else 1)
        wanted += [("around", ()), *inner, ("after", ())]
    assert found == wanted


def test_generators_are_still_driven_from_outside(traced):
    trace = traced("""
from fastload import annotate
log = []
@annotate(message="conversation")
def conversation():
    try:
        heard = yield "first"
        log.append(heard)
        try:
            yield "second"
        except LookupError as error:
            log.append(str(error))
        yield "third"
        yield "fourth"
    finally:
        log.append("closed")
talk = conversation()
assert next(talk) == "first"
assert talk.send("sent") == "second"
assert talk.throw(LookupError("thrown")) == "third"
talk.close()
print(log)
""")
    assert trace.stdout == "['sent', 'thrown', 'closed']\n"
    assert names(trace) == ["conversation"] * 4


@pytest.mark.slow
def test_async_generators_are_still_driven_from_outside(traced):
    trace = traced("""
import asyncio
from fastload import annotate
log = []
async def conversation():
    try:
        log.append((yield "first"))
        try:
            yield "second"
        except LookupError as error:
            log.append(str(error))
        yield "third"
    finally:
        await asyncio.sleep(0)
        log.append("closed")
annotate("__main__:conversation")
async def main():
    talk = conversation()
    assert await talk.asend(None) == "first"
    assert await talk.asend("sent") == "second"
    assert await talk.athrow(LookupError("thrown")) == "third"
    await talk.aclose()
asyncio.run(main())
print(log)
""")
    assert trace.stdout == "['sent', 'thrown', 'closed']\n"
    assert names(trace) == ["conversation"] * 5


def test_a_cancelled_coroutine_cleans_up_and_leaves_no_range_open(traced):
    trace = traced("""
import asyncio
from fastload import annotate
@annotate
async def sleeper():
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("cancelled")
        raise
async def main():
    task = asyncio.create_task(sleeper())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
asyncio.run(main())
""")
    assert trace.stdout == "cancelled\n"
    assert names(trace) == ["sleeper"] * 2


@pytest.mark.slow
def test_a_message_carries_the_arguments(traced):
    trace = traced(
        KINDS
        + r"""
kinds = Kinds()
with annotate(Kinds, "method", message=lambda self, path, *, times=1: f"read {path} {times}"):
    for path in ("a.jpg", "b.jpg", "\udcff.jpg", "日本.jpg"):
        kinds.method(path)
    kinds.method("c.jpg", times=2)
with annotate(Kinds, "method", message="constant"):
    kinds.method("a.jpg")
@annotate(message=lambda number: number)
def decorated(number):
    return number
decorated(7)
"""
    )
    paths = ["a.jpg", "b.jpg", "\\udcff.jpg", "日本.jpg"]
    assert names(trace) == [f"read {path} 1" for path in paths] + ["read c.jpg 2", "constant", "7"]


@pytest.mark.slow
def test_a_message_that_cannot_be_had_costs_the_message_and_nothing_else(traced):
    trace = traced(
        KINDS
        + """
annotate(Kinds, "static", message=lambda: "takes no argument")
print([Kinds.static(number) for number in range(3)])
"""
    )
    assert trace.stdout == "[0, 1, 2]\n"
    assert names(trace) == ["Kinds.static"] * 3
    assert trace.stderr.count("the message function for Kinds.static raised TypeError") == 1


def test_annotations_of_one_function_nest_and_go_in_any_order(traced):
    trace = traced(
        KINDS
        + """
first = annotate(Kinds, "static", message="first")
second = annotate("__main__:Kinds.static", message="second")
Kinds.static(1)
first.remove()
first.remove()
Kinds.static(1)
second.remove()
Kinds.static(1)
"""
    )
    assert [(each.name, each.parents) for each in trace.ranges()] == [
        ("first", ()),
        ("second", ("first",)),
        ("second", ()),
    ]


def test_who_holds_the_function_already_calls_the_annotated_one(traced):
    trace = traced("""
import json, math, sys, types
from json import loads
from math import floor
from fastload import annotate
bound = json.JSONDecoder().decode
with annotate("json:loads"), annotate("json:JSONDecoder.decode"), annotate(math, "floor"):
    loads("1")
    bound("1")
    floor(1.5)
floor(1.5)
assert floor is math.floor and type(floor) is types.BuiltinFunctionType
""")
    assert names(trace) == ["loads", "JSONDecoder.decode", "JSONDecoder.decode", "floor"]


def test_threads_keep_their_own_ranges(traced):
    trace = traced("""
import sys, threading
from fastload import annotate
sys.setswitchinterval(1e-6)
def outer(number):
    return [inner(number) for _ in range(50)]
def inner(number):
    return number
annotate("__main__:outer"), annotate("__main__:inner")
threads = [threading.Thread(target=outer, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""")
    assert names(trace).count("outer") == 4
    assert [each.parents for each in trace.ranges("inner")] == [("outer",)] * 200
    assert len({each.tid for each in trace.ranges()}) == 4


LOADERS = """
import functools, sys
import torch
from torch.utils.data import DataLoader, Dataset
from fastload import FastLoader, annotate

class Files(Dataset):
    def __init__(self):
        self.paths = [f"{number}.jpg" for number in range(6)]
    def __len__(self):
        return len(self.paths)
    def read(self, path):
        if path == self.bad:
            raise ValueError("bad file")
        return torch.zeros(2)
    def __getitem__(self, index):
        return self.read(self.paths[index])
    bad = None

def named(self, path):
    return f"read {path}"

def stack(samples):
    return torch.stack(samples)

"""


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(method, marks=pytest.mark.slow) for method in ("spawn", "forkserver"))]
)
@pytest.mark.parametrize("loader", ["DataLoader", "FastLoader"])
def test_workers_have_the_annotations(traced, method, loader):
    trace = traced(
        LOADERS
        + f"""
if __name__ == "__main__":
    # Made before, so that it holds functions from before: stack and, inside torch, default_collate.
    arguments = dict(batch_size=2, num_workers=2, multiprocessing_context={method!r})
    loaders = [{loader}(Files(), collate_fn=stack, **arguments), {loader}(Files(), **arguments)]
    annotate("torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch")
    annotate(Files, "read", message=named)
    annotate("__main__:stack", message=lambda samples: f"stack {{len(samples)}}")
    for loader in loaders:
        assert len(list(loader)) == 3
"""
    )
    assert sorted(names(trace, name="read 3.jpg")) == ["read 3.jpg"] * 2
    reads = [found for found in trace.ranges() if (found.name or "").startswith("read ")]
    assert len(reads) == 12
    assert all("_MapDatasetFetcher.fetch" in found.parents for found in reads)
    assert len({found.pid for found in reads}) == 4, "in every worker of both loaders"
    # A lambda cannot be sent to a process that is not forked: the range stays, under the function's own name.
    stacks = [found.name for found in trace.ranges() if (found.name or "").startswith("stack")]
    assert stacks == (["stack 2"] if method == "fork" else ["stack"]) * 3
    assert ("its message function cannot be sent there" in trace.stderr) == (method != "fork")


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_failing_sample_leaves_no_range_open_in_its_worker(traced, method):
    trace = traced(
        LOADERS
        + f"""
if __name__ == "__main__":
    annotate(Files, "read", message=named)
    annotate(Files, "__getitem__")
    files = Files()
    files.bad = "2.jpg"
    try:
        list(DataLoader(files, batch_size=2, num_workers=1, multiprocessing_context={method!r}))
    except ValueError as error:
        print("ValueError" in str(error))
"""
    )
    assert trace.stdout == "True\n"
    assert {"read 0.jpg", "read 1.jpg", "read 2.jpg"} <= set(names(trace))  # ranges() fails on an open range


@pytest.mark.thorough
def test_a_removed_annotation_does_not_reach_new_workers(traced):
    trace = traced(
        LOADERS
        + """
if __name__ == "__main__":
    loader = DataLoader(Files(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    with annotate(Files, "read"):
        list(loader)
    list(loader)
    import multiprocessing
    assert "fastload" not in multiprocessing.current_process()._config
"""
    )
    assert names(trace) == ["Files.read"] * 6


@pytest.mark.slow
def test_an_annotation_that_the_main_module_makes_when_imported_is_made_once_in_a_worker(traced):
    trace = traced(
        LOADERS
        + """
annotate(Files, "read")
if __name__ == "__main__":
    list(DataLoader(Files(), batch_size=2, num_workers=1, multiprocessing_context="spawn"))
"""
    )
    assert names(trace) == ["Files.read"] * 6


@pytest.mark.thorough
def test_processes_of_processes_have_the_annotations(traced):
    trace = traced("""
import multiprocessing
from fastload import annotate
def child(depth):
    if depth:
        grandchild = multiprocessing.get_context("spawn").Process(target=child, args=(depth - 1,))
        grandchild.start()
        grandchild.join()
if __name__ == "__main__":
    annotate("__main__:child", message="child")
    child(2)
""")
    assert names(trace) == ["child"] * 3
    assert len(trace.pids) == 3


@pytest.mark.slow
def test_what_cannot_be_annotated_in_a_worker_does_not_keep_it_from_starting(traced):
    trace = traced(
        LOADERS
        + """
def local():
    class Local:
        def method(self):
            pass
    return Local
if __name__ == "__main__":
    import types
    sys.modules["only_here"] = types.ModuleType("only_here")
    exec("def function(): pass", vars(sys.modules["only_here"]))
    annotate("only_here:function")
    annotate(local(), "method")
    annotate(Files, "read")
    list(DataLoader(Files(), batch_size=2, num_workers=1, multiprocessing_context="spawn"))
"""
    )
    assert names(trace) == ["Files.read"] * 6
    assert "only_here:function is not annotated in a child process: ModuleNotFoundError" in trace.stderr
    assert "exists inside a function, where another process cannot find it" in trace.stderr


def test_torch_profiler_sees_the_ranges_too():
    with annotate("json:loads"), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        json.loads("1")
        with annotate(message="around"):
            pass
    assert {"loads", "around"} <= {event.name for event in profile.events()}


# --- what it leaves behind, without a tool


def free_variables():
    first, second = 1, 2

    def function(third, fourth=4, *, fifth: int = 5) -> int:
        """What it does."""
        return first + second + third + fourth + fifth

    return function


class Sample:
    def method(self, x):
        return super().__repr__() and x

    alias = method

    @classmethod
    def of_class(cls):
        return cls

    @staticmethod
    def static(x):
        return x

    @functools.lru_cache  # noqa: B019 - to be annotated
    def cached(self):
        return 1

    @property
    def attribute(self):
        return 1


def state(function):
    return (
        function.__code__,
        function.__defaults__,
        function.__kwdefaults__,
        dict(vars(function)),
        function.__name__,
        function.__qualname__,
        function.__doc__,
        inspect.signature(function),
    )


def test_a_function_is_afterwards_as_it_was(monkeypatch):
    function = free_variables()
    function.own = "attribute"
    monkeypatch.setattr(Sample, "added", staticmethod(function), raising=False)
    before = state(function)
    with annotate(Sample, "added"):
        assert Sample.added(3, fifth=6) == 16
        assert state(function)[4:] == before[4:]
        assert function.__code__ is not before[0]
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'third'"):
            function()
    assert state(function) == before
    assert function(3) == 15


def test_a_class_is_afterwards_as_it_was():
    before = dict(vars(Sample))
    handles = [annotate(Sample, name) for name in ("method", "of_class", "static", "cached", "attribute", "__eq__")]
    sample = Sample()
    results = (
        sample.method(1),
        sample.alias(2),
        sample.of_class(),
        sample.static(3),
        sample.cached(),
        sample.attribute,
    )
    assert results == (1, 2, Sample, 3, 1, 1)
    assert Sample.cached.cache_info().currsize == 1
    for handle in handles:
        handle.remove()
    assert dict(vars(Sample)) == before
    assert Sample.__eq__ is object.__eq__
    Sample.cached.cache_clear()


def test_another_patch_made_meanwhile_survives_the_removal(monkeypatch):
    original = Sample.cached
    handle = annotate(Sample, "cached")
    annotated = vars(Sample)["cached"]
    patch = functools.wraps(annotated)(lambda self: annotated(self) + 1)
    monkeypatch.setattr(Sample, "cached", patch)
    handle.remove()
    assert vars(Sample)["cached"] is patch
    assert Sample().cached() == 2
    monkeypatch.undo()
    Sample.cached = original


def test_a_function_is_pickled_by_name_while_it_is_annotated():
    held = fastload.jpeg_info
    with annotate("fastload.vision.codec:jpeg_info"):
        assert pickle.loads(pickle.dumps(held)) is held


def test_the_kind_of_a_function_can_still_be_told():
    async def later():
        yield 1

    async def wait():
        pass

    def generate():
        yield 1

    assert inspect.isasyncgenfunction(annotate(later))
    assert inspect.iscoroutinefunction(annotate(wait))
    assert inspect.isgeneratorfunction(annotate(generate))
    assert annotate(generate).__name__ == "generate"
    assert annotate(generate).__wrapped__ is generate
    assert asyncio.run(annotate(wait)()) is None


def test_locals_of_every_frame_can_be_looked_at_while_annotated():
    """Debuggers and error reports read locals; inserted frames have the closure's variables too."""

    class Looks(Sample):
        def method(self, x):
            frames = []
            frame = inspect.currentframe()
            while frame is not None and len(frames) < 5:
                frames.append(dict(frame.f_locals))
                frame = frame.f_back
            return super().method(x), frames

    with annotate(Looks, "method"):
        result, frames = Looks().method(1)
    assert result == 1
    assert len(frames) == 5
    assert any("__fastload__" in each for each in frames)


def test_an_error_shows_the_functions_own_line():
    class Fails:
        def method(self):
            raise LookupError("own line")

    with annotate(Fails, "method"), pytest.raises(LookupError) as caught:
        Fails().method()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.line) == (__file__, 'raise LookupError("own line")')


def test_compiled_code_goes_through_an_annotated_function():
    function = free_variables()
    holder = types.ModuleType("holder")
    holder.function = function
    with annotate(holder, "function"):
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        assert compiled(torch.ones(1)).item() == 13
        inside = torch.compile(lambda x: holder.function(x) * 2, backend="eager", fullgraph=True)
        assert inside(torch.ones(1)).item() == 26


@pytest.mark.skipif(stages.active(), reason="a profiler is attached to the tests themselves")
def test_without_a_tool_a_call_costs_next_to_nothing_more():
    def once():
        Sample.static(1)

    plain = in_calls(once)
    with annotate(Sample, "static"):
        assert in_calls(once) < plain + 40


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("json.loads",), ValueError, r"takes 'module:qualname', such as .*, got 'json.loads'; to name the range"),
        (("json:",), ValueError, "got 'json:'"),
        (("json:a:b",), ValueError, "got 'json:a:b'"),
        (("json:local.<locals>.f",), ValueError, "module:qualname"),
        (("no_such_module:f",), ModuleNotFoundError, "no_such_module"),
        (("json:no_such_name",), AttributeError, "json has no attribute 'no_such_name'"),
        (("json:JSONDecoder",), TypeError, r"a function or a method, got JSONDecoder of json.*JSONDecoder.__init__"),
        (("sys:flags.debug",), TypeError, "attribute of a module or of a class, got 'sys:flags.debug', where flags is"),
        (("json:__name__",), TypeError, "got __name__ of json, a str; name a function or a method"),
        (
            (Sample(), "method"),
            TypeError,
            r"a module or a class to look 'method' up in.*annotate\(type\(it\), 'method'\)",
        ),
        ((Sample, 3), TypeError, "the name must be a string, got 3"),
        ((Sample,), TypeError, "an owner and a name, or a function to decorate"),
        ((3,), TypeError, "or a function to decorate, got 3"),
        ((list, "append"), TypeError, "annotate takes attributes that can be set, got append of"),
    ],
)
def test_a_wrong_target_says_what_a_right_one_is(arguments, error, message):
    with pytest.raises(error, match=message):
        annotate(*arguments)


def test_a_wrong_message_says_what_a_right_one_is():
    with pytest.raises(TypeError, match="text or a function that returns it, got 3"):
        annotate("json:loads", message=3)
    with pytest.raises(
        TypeError, match=r"a block's range needs a name, got message=None; write with annotate\(message="
    ):
        annotate().__enter__()
    with (
        annotate("json:loads") as annotation,
        pytest.raises(TypeError, match="annotates what it names and decorates nothing"),
    ):
        annotation(print)
    with pytest.raises(TypeError, match="decorate a method of it"):
        annotate(message="x")(Sample)
