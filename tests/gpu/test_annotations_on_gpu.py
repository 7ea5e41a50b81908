"""Test a model's ranges on the GPU, and a profiler's window around its steps.

The backward pass runs on one of autograd's threads.
"""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from fastload import FastLoader, annotate_modules, capture

pytestmark = pytest.mark.gpu

MODEL = """
import torch
from torch import nn
from fastload import annotate, annotate_modules

class RaisingGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("in backward")

class Raises(nn.Module):
    def forward(self, x):
        return RaisingGradient.apply(x)

def model(*modules):
    made = nn.Sequential(*modules).cuda()
    annotate_modules(made)
    return made

x = torch.randn(8, 4, device="cuda")
"""


def test_backward_ranges_nest_on_the_thread_that_runs_backward(traced):
    trace = traced(
        MODEL
        + """
trained = model(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
for _ in range(3):
    trained(x).sum().backward()
"""
    )
    forward = [found for found in trace.ranges() if not (found.name or "").endswith("backward")]
    backward = [found for found in trace.ranges() if (found.name or "").endswith("backward")]
    assert [found.name for found in forward] == ["Sequential", "0", "1", "2"] * 3
    assert [(found.name, found.depth) for found in backward] == [
        ("Sequential backward", 0), ("2 backward", 1), ("1 backward", 1), ("0 backward", 1),
    ] * 3  # fmt: skip
    assert len({found.tid for found in backward}) == 1
    assert {found.tid for found in backward}.isdisjoint({found.tid for found in forward})


def test_a_backward_pass_that_fails_does_not_show_in_the_next(traced):
    trace = traced(
        MODEL
        + """
failing = model(nn.Linear(4, 4), Raises(), nn.Linear(4, 4))
working = model(nn.Linear(4, 4))
for _ in range(2):
    try:
        failing(x).sum().backward()
    except ValueError:
        print("failed")
    working(x).sum().backward()
    result = failing(x)
    torch.autograd.grad(result.sum(), failing[2].weight)
    working(x).sum().backward()
"""
    )
    assert trace.stdout == "failed\nfailed\n"
    outermost = [found.name for found in trace.ranges() if found.depth == 0 and "backward" in (found.name or "")]
    assert outermost == ["Sequential backward"] * 8
    inner = [found.name for found in trace.ranges() if found.depth == 1 and "backward" in (found.name or "")]
    assert inner == ["2 backward", "1 backward", "0 backward", "2 backward", "0 backward"] * 2


def test_a_window_holds_the_kernels_of_its_steps(tmp_path):
    net = nn.Sequential(nn.Linear(4, 4)).cuda()
    data = [(torch.full((4,), float(number)), number) for number in range(48)]
    with annotate_modules(net), FastLoader(data, 8, num_workers=2) as loader:
        batches = capture(loader, warmup=2, steps=3, trace=tmp_path / "trace.json")
        for inputs, _ in batches:
            net(inputs).sum().backward()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event.get("name") for event in events if event.get("ph") == "X"]
    assert batches.captured == names.count("step") == 3
    assert names.count("0") == names.count("0 backward") == 3
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert len(kernels) >= 3


def test_results_and_gradients_are_the_same_bits():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(32, 2)
    ).cuda()
    x = torch.randn(16, 3, 4, 4, device="cuda")
    gradients = []
    torch.backends.cudnn.deterministic = True
    try:
        for annotated in (False, True):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                annotation = annotate_modules(net) if annotated else None
                net.zero_grad()
                net(x).pow(2).sum().backward()
                gradients.append([parameter.grad.clone() for parameter in net.parameters()])
                if annotation is not None:
                    annotation.remove()
    finally:
        torch.backends.cudnn.deterministic = False
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    "devices",
    [
        ("cpu", "cuda:0"),
        pytest.param(
            ("cuda:0", "cuda:1"), marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
        ),
    ],
)
def test_a_model_on_two_devices_leaves_no_range_open(traced, devices):
    """Autograd's threads, one per device, begin and end the model's range on different threads."""
    trace = traced(
        MODEL
        + f"""
class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4).to("{devices[0]}"), nn.Linear(4, 4).to("{devices[1]}")
    def forward(self, x):
        return self.second(self.first(x.to("{devices[0]}")).to("{devices[1]}"))
split = Split()
annotation = annotate_modules(split)
for _ in range(3):
    split(x).sum().backward()
annotation.remove()
"""
    )
    names = [found.name for found in trace.ranges()]
    assert names.count("first backward") == names.count("second backward") == 3
    assert "Split backward" not in names
    whole = trace.process_ranges()
    assert [name for name, _, _ in whole] == ["Split backward"] * 3
    assert all(started != ended for _, started, ended in whole)
