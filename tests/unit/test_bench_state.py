"""Test ``python -m benchmarks state``: its figures, and the state that it goes on from."""

from __future__ import annotations

import io
import json

import pytest
import torch

from benchmarks.__main__ import main as run_benchmark
from benchmarks.state import contenders, first_batch_s, measure


@pytest.mark.slow
def test_the_command_writes_every_figure(tmp_path, capsys):
    assert run_benchmark(["state", "--quick", "--json", str(tmp_path / "state.json")]) == 0
    record = json.loads((tmp_path / "state.json").read_text())
    found = record["contenders"]["fastload"]
    assert set(found["steps"]) == {"1", "10"}
    assert all(0 < cost["bytes"] < 100_000 and len(cost["call_us"]["values"]) == 10 for cost in found["steps"].values())
    assert found["first_batch_s_middle"]["median"] > 0
    assert "from the epoch's middle" in capsys.readouterr().out


def test_the_state_is_that_of_the_middle():
    make = contenders(100)["fastload"]
    costs, saved = measure(make, (2,), 5, 1)
    assert list(costs["steps"]) == ["2"]
    assert costs["batch_us"] > 0
    assert torch.load(io.BytesIO(saved), weights_only=True)["_num_yielded"] == 5
    loaders = []
    first_batch_s(lambda: loaders.append(make()) or loaders[-1], saved)
    assert loaders[0].state_dict()["_num_yielded"] == 6
