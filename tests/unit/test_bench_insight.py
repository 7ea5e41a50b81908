"""Test ``python -m benchmarks insight``: a contender without statistics, and what figures mean."""

from __future__ import annotations

import json
import random
import threading

import pytest
import torch
from backends import simulated
from backends.simulated import SimulatedTransfer
from torch.utils.data import Dataset

from benchmarks import insight
from benchmarks.__main__ import main as run_benchmark
from benchmarks.insight import Compared, interval_of_median, stages_of_a_batch, stats_of_a_batch, without_stats
from fastload import FastLoader, iterators

CPU = torch.device("cpu")


class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_without_statistics_has_the_same_batches_and_counts_none(workers):
    with FastLoader(Numbers(), batch_size=8, num_workers=workers, device="cpu") as loader:
        with without_stats():
            bare = [batch.tolist() for batch in loader]
            assert loader.stats().batches == 0
            assert not loader.stats().stages
        assert [batch.tolist() for batch in loader] == bare
        assert loader.stats().batches == 8
        assert loader.stats().stages["fetch"].count == 8


def test_each_contender_has_what_its_name_says(monkeypatch):
    seen = {}
    for name, run in stats_of_a_batch(CPU, 10).items():
        loaders = []
        real = FastLoader.__iter__
        monkeypatch.setattr(
            FastLoader, "__iter__", lambda self, real=real, found=loaders: found.append(self) or real(self)
        )
        run()
        monkeypatch.undo()
        stats = loaders[0].stats()
        seen[name] = stats.batches, stats.fetch.sampled_s > 0
    assert seen == {"bare": (0, False), "stats": (10, True), "stats, native": (10, False)}


def test_one_thread_copies_and_the_devices_clock_times_it(monkeypatch):
    """A missing side stream means no clock; with a feeder, two threads would contend."""
    transfers = []

    class Watched(SimulatedTransfer):
        def __init__(self, device, stream, *rest):
            super().__init__(device, stream, *rest)
            transfers.append((stream, self))

        def start(self, *args, **kwargs):
            threads.add(threading.current_thread())
            return super().start(*args, **kwargs)

    threads = set()
    simulated.install(monkeypatch)
    monkeypatch.setattr(iterators, "Transfer", Watched)
    stats_of_a_batch(torch.device("cuda"), 10)["stats"]()
    assert transfers[0][0] is not None
    assert transfers[0][1].batches == 10
    assert threads == {threading.current_thread()}


def test_stages_are_counted_per_batch():
    """Of a backend with all of them: wait, collate, h2d, epilogue."""
    assert stages_of_a_batch(lambda: FastLoader(Numbers(), batch_size=8, device="cpu", dtype=torch.float32), 4) == 4.0


@pytest.mark.slow
def test_both_contenders_run_the_same_batches():
    result = Compared(lambda: FastLoader(Numbers(), batch_size=8, num_workers=1, device="cpu"), 8, CPU).run(0.02, 6)
    assert len(result["lost"]["values"]) == 6
    assert result["lost"]["low"] <= result["lost"]["median"] <= result["lost"]["high"]
    assert result["images_per_s"]["median"] == pytest.approx(8 * result["batches_per_s"]["on"]["median"])


def test_the_interval_holds_the_median_nineteen_times_in_twenty():
    generator = random.Random(0)
    held = 0
    for _ in range(1000):
        low, high = interval_of_median([generator.expovariate(1.0) for _ in range(15)])
        held += low <= 0.6931 <= high
    assert 950 <= held <= 985
    assert interval_of_median(range(15)) == (3, 11)
    assert interval_of_median([2, 1, 3]) == (1, 3)
    assert interval_of_median([7]) == (7, 7)


@pytest.mark.timeout(300)
@pytest.mark.thorough
def test_the_command_writes_every_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(insight, "cores_for_loading", lambda: 1)
    assert run_benchmark(["insight", "--quick", "--json", "insight.json"]) == 0
    record = json.loads((tmp_path / "insight.json").read_text())
    assert {"annotate_modules", "stage", "stats", "stats, native"} <= set(record["more_ns"])
    assert set(record["shares"]) == {"native", "worker processes"}
    for share in record["shares"].values():
        assert len(share["lost"]["values"]) >= 5
        assert 0 < share["nvtx_share"] < share["limit"] or share["stages_per_batch"] == 0
    assert record["shares"]["native"]["stages_per_batch"] > 0
    assert "at most 0.5% wanted" in capsys.readouterr().out
