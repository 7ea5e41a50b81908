"""``annotate_modules`` emits ranges of a model's modules, and restores the model."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from typing import ClassVar

import pytest
import torch
from torch import nn

from fastload import annotate_modules
from fastload.nvtx import autograd, stages
from fastload.nvtx.modules import hook_while_profiling

MODELS = """
import copy, sys, threading, warnings
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from fastload import annotate, annotate_modules

torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU(inplace=True)
        self.side = nn.Conv2d(3, 3, 1)
    def forward(self, x):
        return self.relu(self.conv(x)) + self.side(x)

class Named(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

class Raises(Named):
    error = ValueError
    def forward(self, x):
        x = self.inner(x)
        raise self.error("in forward")

class RaisingGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("in backward")

class RaisesInBackward(nn.Module):
    def forward(self, x):
        return RaisingGradient.apply(x)

def linear():
    return nn.Linear(2, 2)

x = torch.randn(1, 2)
"""


def tree(trace):
    """The ranges by start, each with those around it."""
    return [" > ".join([*(parent or "" for parent in found.parents), found.name or ""]) for found in trace.ranges()]


def test_forward_and_backward_nest_as_the_calls_did(traced):
    trace = traced(
        MODELS
        + """
model = nn.Sequential(Block(), Block())
print(annotate_modules(model).names)
model(torch.randn(1, 3, 4, 4)).sum().backward()
"""
    )
    names = ["0", "0.conv", "0.relu", "0.side", "1", "1.conv", "1.relu", "1.side"]
    assert trace.stdout == f"{('Sequential', *names)}\n"
    assert tree(trace) == [
        "Sequential",
        "Sequential > 0",
        *(f"Sequential > 0 > 0.{name}" for name in ("conv", "relu", "side")),
        "Sequential > 1",
        *(f"Sequential > 1 > 1.{name}" for name in ("conv", "relu", "side")),
        "Sequential backward",
        "Sequential backward > 1 backward",
        *(f"Sequential backward > 1 backward > 1.{name} backward" for name in ("side", "relu", "conv")),
        "Sequential backward > 0 backward",
        *(f"Sequential backward > 0 backward > 0.{name} backward" for name in ("side", "relu", "conv")),
    ]


def test_depth_counts_the_levels_below_the_model(traced):
    trace = traced(
        MODELS
        + """
model = nn.Sequential(nn.Sequential(linear()))
for depth in (0, 1, 2):
    with annotate_modules(model, depth), annotate(message=str(depth)):
        model(x)
model(x)
"""
    )
    assert tree(trace) == [
        "0",
        "0 > Sequential",
        "1",
        "1 > Sequential",
        "1 > Sequential > 0",
        "2",
        "2 > Sequential",
        "2 > Sequential > 0",
        "2 > Sequential > 0 > 0.0",
    ]


def test_every_range_ends_when_a_pass_raises(traced):
    trace = traced(
        MODELS
        + """
def attempt(model, error, backward=False):
    try:
        result = model(x)
        if backward:
            result.sum().backward()
    except error:
        with annotate(message="handler"):
            pass

with annotate(message="forward"):
    model = Raises(linear())
    annotate_modules(model)
    attempt(model, ValueError)
with annotate(message="backward"):
    model = nn.Sequential(linear(), RaisesInBackward(), linear())
    annotate_modules(model)
    attempt(model, ValueError, backward=True)
# Torch calls no hook then, so the range ends with the next one around it, or when the model is called again.
model = Raises(linear())
model.error = KeyboardInterrupt
annotate_modules(model)
with annotate(message="interrupt"):
    attempt(model, KeyboardInterrupt)
attempt(model, KeyboardInterrupt)
model.error = ValueError
attempt(model, ValueError)
# Another hook that raises, before ours would and after.
for place in (True, False):
    with annotate(message="hook"):
        model = nn.Sequential(linear())
        model[0].register_forward_pre_hook(lambda module, inputs: 1 / 0) if place else None
        annotate_modules(model)
        model[0].register_forward_hook(lambda module, inputs, output: 1 / 0)
        attempt(model, ZeroDivisionError)
"""
    )
    assert tree(trace) == [
        "forward",
        "forward > Raises",
        "forward > Raises > inner",
        "forward > handler",
        "backward",
        *(f"backward > {name}" for name in ("Sequential", "Sequential > 0", "Sequential > 1", "Sequential > 2")),
        "backward > Sequential backward",
        "backward > Sequential backward > 2 backward",
        "backward > Sequential backward > 1 backward",
        "backward > handler",
        "interrupt",
        "interrupt > Raises",
        "interrupt > Raises > inner",
        "interrupt > Raises > handler",
        "Raises",
        "Raises > inner",
        "Raises > handler",
        "Raises",
        "Raises > inner",
        "handler",
        *("hook", "hook > Sequential", "hook > Sequential > 0", "hook > handler") * 2,
    ]


def test_shared_and_reentered_modules(traced):
    trace = traced(
        MODELS
        + """
shared = linear()
model = nn.Sequential(shared, nn.Tanh(), shared)
annotate_modules(model)
with annotate(message="shared"):
    model(x).sum().backward()

class Calls(Named):
    def forward(self, x, times=2):
        return self(self.inner(x), times=times - 1) if times else x
model = Calls(linear())
annotate_modules(model)
with annotate(message="re-entered"):
    model(x).sum().backward()
"""
    )
    assert tree(trace) == [
        "shared",
        "shared > Sequential",
        *(f"shared > Sequential > {name}" for name in ("0", "1", "0")),
        "shared > Sequential backward",
        *(f"shared > Sequential backward > {name} backward" for name in ("0", "1", "0")),
        "re-entered",
        "re-entered > Calls",
        "re-entered > Calls > inner",
        "re-entered > Calls > Calls",
        "re-entered > Calls > Calls > inner",
        "re-entered > Calls > Calls > Calls",
        "re-entered > Calls backward",
        "re-entered > Calls backward > Calls backward",
        "re-entered > Calls backward > Calls backward > inner backward",
        "re-entered > Calls backward > inner backward",
    ]


def test_backward_passes_that_are_partial_repeated_or_nested(traced):
    trace = traced(
        MODELS
        + """
model = nn.Sequential(linear(), linear())
annotate_modules(model)
result = model(x)
with annotate(message="partial"):
    torch.autograd.grad(result.sum(), model[1].weight, retain_graph=True)
for _ in range(2):
    with annotate(message="repeated"):
        result.sum().backward(retain_graph=True)

class Checkpointed(Named):
    reentrant = True
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)
for reentrant in (True, False):
    model = nn.Sequential(linear(), Checkpointed(linear()))
    model[1].reentrant = reentrant
    annotate_modules(model)
    result = model(x)
    with annotate(message=f"reentrant {reentrant}"):
        result.sum().backward()

y = torch.randn(2, 2, requires_grad=True)
model = nn.Sequential(linear(), nn.Tanh())
annotate_modules(model)
result = model(y)
with annotate(message="twice"):
    torch.autograd.grad(result.sum(), y, create_graph=True)[0].pow(2).sum().backward()
with torch.no_grad(), annotate(message="no gradient"):
    model(y)
"""
    )
    found = [line for line in tree(trace) if " > " in line and not line.startswith(("Sequential", "Checkpointed"))]
    model = "Sequential backward"
    assert found == [
        f"partial > {model}",
        f"partial > {model} > 1 backward",
        *(f"repeated > {model}", f"repeated > {model} > 1 backward", f"repeated > {model} > 0 backward") * 2,
        f"reentrant True > {model}",
        f"reentrant True > {model} > 1 backward",
        f"reentrant True > {model} > 1 backward > 1.inner",
        f"reentrant True > {model} > 1 backward > 1.inner backward",
        f"reentrant True > {model} > 0 backward",
        f"reentrant False > {model}",
        f"reentrant False > {model} > 1 backward",
        f"reentrant False > {model} > 1 backward > 1.inner backward",
        f"reentrant False > {model} > 1 backward > 1.inner backward > 1.inner",
        f"reentrant False > {model} > 0 backward",
        *(f"twice > {model}", f"twice > {model} > 1 backward", f"twice > {model} > 0 backward") * 2,
        "no gradient > Sequential",
        "no gradient > Sequential > 0",
        "no gradient > Sequential > 1",
    ]


def test_threads_keep_their_own_ranges(traced):
    trace = traced(
        MODELS
        + """
sys.setswitchinterval(1e-6)
model = nn.Sequential(linear(), nn.Sequential(linear()))
annotate_modules(model)
def train():
    for _ in range(20):
        model(x).sum().backward()
threads = [threading.Thread(target=train) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    )
    by_thread = {}
    for found in trace.ranges():
        by_thread.setdefault(found.tid, []).append((found.name, found.parents))
    assert len(by_thread) == 3
    first, *others = by_thread.values()
    assert len(first) == 20 * 8
    assert all(other == first for other in others)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_model_in_worker_processes_has_its_ranges(traced, method):
    trace = traced(
        MODELS
        + f"""
class Features(torch.utils.data.Dataset):
    def __init__(self):
        self.model = nn.Sequential(linear())
    def __len__(self):
        return 2
    def __getitem__(self, index):
        if index == 1:
            self.model(torch.zeros(3, 3, 3))
        return self.model(torch.zeros(1, 2)).detach()
if __name__ == "__main__":
    dataset = Features()
    annotate_modules(dataset.model)
    loader = torch.utils.data.DataLoader(dataset, num_workers=1, multiprocessing_context={method!r})
    try:
        list(loader)
    except RuntimeError as error:
        print("mat1 and mat2" in str(error))
"""
    )
    assert trace.stdout == "True\n"
    assert tree(trace) == ["Sequential", "Sequential > 0"] * 2
    assert len(trace.pids) == 1


@pytest.mark.slow
def test_what_is_compiled_is_left_out_and_named(traced):
    trace = traced(
        MODELS
        + """
def model():
    return nn.Sequential(nn.Sequential(linear()), nn.Sequential(linear()))
def annotated(model, what):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        annotation = annotate_modules(model)
    with annotate(message=what):
        model(x).sum().backward()
    annotation.remove()
    print(what, dict(annotation.skipped), [str(each.message) for each in caught] != [])

annotated(torch.compile(model(), backend="eager"), "whole")
part = model()
part[0] = torch.compile(part[0], backend="eager")
annotated(part, "part")
part = model()
part[0].compile(backend="eager")
annotated(part, "in place")
part = model()
part[0].forward = torch.compile(part[0].forward, backend="eager")
annotated(part, "forward")
part = model()
part[0] = torch.jit.trace(part[0], x)
annotated(part, "traced")
later = model()
annotate_modules(later)
with annotate(message="later"):
    torch.compile(later, backend="eager", fullgraph=True)(x).sum().backward()
"""
    )
    compiled = "compiled by torch.compile; annotate the model before, and run it uncompiled"
    in_place = "compiled in place by compile(); annotate the model before, and run it uncompiled"
    scripted = "compiled by torch.jit; annotate the module that was scripted or traced"
    assert trace.stdout.splitlines() == [
        f"whole { ({'Sequential': compiled}) } True",
        f"part { ({'0': compiled}) } True",
        f"in place { ({'0': in_place}) } True",
        f"forward { ({'0': compiled}) } True",
        f"traced { ({'0': scripted}) } True",
    ]
    names = {what: [] for what in ("whole", "part", "in place", "forward", "traced", "later")}
    for found in trace.ranges():
        if found.parents and not (found.name or "").endswith("backward"):
            names[found.parents[0]].append(found.name)
    assert names == {
        "whole": ["Sequential"],
        "part": ["Sequential", "0", "1", "1.0"],
        "in place": ["Sequential", "1", "1.0"],
        "forward": ["Sequential", "0", "1", "1.0"],
        "traced": ["Sequential", "0", "1", "1.0"],
        "later": [],
    }


def test_torch_profiler_sees_the_ranges_too():
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, annotate_modules(model):
        model(torch.zeros(1, 2)).sum().backward()
    seen = [event.name for event in profile.events() if event.name.startswith(("Sequential", "0"))]
    assert seen == ["Sequential", "0", "Sequential backward", "0 backward"]


# --- what it leaves behind


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x, *, scale=1.0):
        return {"out": self.relu(self.norm(self.conv(x))) * scale + x}


@pytest.fixture
def hooked():
    """Hooks are installed and see every call, as with a tool attached: torch.profiler runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


def everything(model):
    def plain(value):
        return dict(value) if isinstance(value, dict) else value

    return {name: {key: plain(value) for key, value in vars(each).items()} for name, each in model.named_modules()}


@pytest.mark.usefixtures("hooked")
def test_the_model_is_afterwards_as_it_was():
    model = Residual()
    order = []
    model.register_forward_pre_hook(lambda *_: order.append("pre"))
    model.register_forward_hook(lambda *_: order.append("post"))
    before = everything(model)
    hooks = list(model._forward_pre_hooks), list(model._forward_hooks)
    with annotate_modules(model):
        assert everything(model) != before
        model(torch.zeros(1, 3, 2, 2))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    after = everything(model)
    assert {name: {**state, "_buffers": None} for name, state in after.items()} == {
        name: {**state, "_buffers": None} for name, state in before.items()
    }
    assert buffers.keys() == dict(model.named_buffers()).keys()
    assert (list(model._forward_pre_hooks), list(model._forward_hooks)) == hooks
    assert order == ["pre", "post"]


@pytest.mark.usefixtures("hooked")
def test_results_and_gradients_are_the_same_bits():
    torch.manual_seed(0)
    plain = nn.ModuleList([Residual(), Residual()])
    annotated = copy.deepcopy(plain)
    x = torch.randn(2, 3, 4, 4)
    with annotate_modules(annotated):
        for models in (plain, annotated):
            y = x.clone().requires_grad_()
            out = models[1](models[0](y)["out"], scale=0.5)["out"]
            out.pow(2).sum().backward()
            models.input_gradient = y.grad
    assert torch.equal(plain.input_gradient, annotated.input_gradient)
    for ours, theirs in zip(annotated.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


class Canary:
    """Lives as long as the graph."""


class Kept(torch.autograd.Function):
    canaries: ClassVar[list[weakref.ref[Canary]]] = []

    @staticmethod
    def forward(ctx, x):
        ctx.canary = Canary()
        Kept.canaries.append(weakref.ref(ctx.canary))
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Keeps(nn.Module):
    def forward(self, x):
        return Kept.apply(x)


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("backward", ["never", "once", "partly", "failing"])
def test_the_graph_is_freed_as_soon_as_nobody_needs_it(backward):
    """And not only when the garbage collector comes by: until then it holds the activations."""
    model = nn.Sequential(nn.Linear(2, 2), Keeps(), nn.Linear(2, 2))
    gc.collect()
    gc.disable()
    Kept.canaries.clear()
    try:
        with annotate_modules(model):
            result = model(torch.randn(1, 2))
            if backward == "once":
                result.sum().backward()
            elif backward == "partly":
                torch.autograd.grad(result.sum(), model[2].weight)
            elif backward == "failing":
                model[0].weight.register_hook(lambda gradient: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    result.sum().backward()
            assert [reference() is None for reference in Kept.canaries] == [False]
            del result
            assert [reference() is None for reference in Kept.canaries] == [True]
    finally:
        gc.enable()


@pytest.mark.usefixtures("hooked")
def test_copies_and_files_of_an_annotated_model():
    model = nn.Sequential(nn.Linear(2, 2))
    annotation = annotate_modules(model)
    twin = copy.deepcopy(model)
    restored = pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert model.state_dict().keys() == nn.Sequential(nn.Linear(2, 2)).state_dict().keys()
    annotation.remove()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for each in (model, twin, restored, loaded):
            each(torch.zeros(1, 2))
    assert "Sequential" not in [event.name for event in profile.events()]


@pytest.mark.skipif(stages.active(), reason="a profiler is attached to the tests themselves")
def test_without_a_tool_the_model_is_not_even_hooked():
    model = Residual()
    before = everything(model)
    annotation = annotate_modules(model)
    assert annotation.names == ("Residual", "conv", "norm", "relu")
    assert everything(model) == before
    hook_while_profiling(True)
    assert len(model.conv._forward_hooks) == len(model.conv._forward_pre_hooks) == 1
    hook_while_profiling(False)
    assert everything(model) == before
    annotation.remove()
    annotation.remove()
    hook_while_profiling(True)
    assert everything(model) == before


def test_an_annotation_does_not_keep_the_model_alive():
    model = Residual()
    alive = weakref.ref(model)
    annotate_modules(model)
    del model
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3,), TypeError, r"takes a torch.nn.Module, got int"),
        ((nn.Linear,), TypeError, r"takes a torch.nn.Module, got type"),
        ((nn.Identity(), 1.5), TypeError, "depth must be an integer or None, got 1.5"),
        ((nn.Identity(), True), TypeError, "depth must be an integer or None, got True"),
        ((nn.Identity(), -1), ValueError, "depth must be >= 0, got -1; 0 annotates the model alone"),
    ],
)
def test_a_wrong_argument_says_what_a_right_one_is(arguments, error, message):
    with pytest.raises(error, match=message):
        annotate_modules(*arguments)


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_the_wait_for_autograds_threads_is_a_backward_pass_whatever_the_mode(monkeypatch, without_gradients):
    ran = []
    real = torch.Tensor.backward
    monkeypatch.setattr(autograd, "_hooked_on", {torch.device("cpu")})
    monkeypatch.setattr(torch.Tensor, "backward", lambda self: (real(self), ran.append(self.device)))
    with without_gradients():
        autograd._settle()
    assert ran == [torch.device("cpu")]
