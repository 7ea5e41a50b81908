"""Ray Train's workers and Ray Data's tasks, on two nodes, give one machine's batches."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import optional
import psutil
import pytest
import ray_cluster
import torch
from photos import assert_same, make_folder
from torch.utils.data import DataLoader, DistributedSampler

from fastload import FastLoader

optional.needed("ray")
pytestmark = pytest.mark.slow
COUNT = 22  # not divisible by the workers' batches


def processes_with(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("FASTLOAD_TEST") == mark:
                found.append(process)
        except psutil.Error:
            pass
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("images"), COUNT)


@pytest.fixture(scope="module")
def out(folder, tmp_path_factory):
    """What the program has written. It runs alone: Ray leaves threads in its process."""
    written, mark = tmp_path_factory.mktemp("out"), uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="ray-") as short:  # paths of sockets have a limit
        settings = {"RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}
        try:
            done = subprocess.run(
                [sys.executable, ray_cluster.__file__, str(folder), str(written)],
                env={
                    **os.environ,
                    **settings,
                    "OMP_NUM_THREADS": "1",
                    "FASTLOAD_TEST": mark,
                    "CUDA_VISIBLE_DEVICES": "",
                },
                capture_output=True,
                text=True,
                timeout=500,  # a minute alone, several where twice as many processes as cores are busy
                check=False,
            )
        finally:
            left = processes_with(mark)
            for process in left:
                process.kill()
    assert done.returncode == 0, done.stderr
    assert not left, f"{len(left)} processes outlive the cluster"
    return Path(written)


@pytest.mark.timeout(600)
def test_workers_of_a_trainer_have_fast_loaders_with_their_parts(out, folder):
    ranks = [torch.load(out / f"{rank}.pt") for rank in range(ray_cluster.NODES)]
    assert len({result["node"] for result in ranks}) == ray_cluster.NODES
    for rank, result in enumerate(ranks):
        assert result["given is itself"]
        assert result["wrapped again is itself"]
        assert result["engines"] == ["native", "native"]
        assert result["wrapped"] == ("FastLoader", "DistributedSampler", "cpu", 2)
        data = ray_cluster.classic(folder)
        sampler = DistributedSampler(data, ray_cluster.NODES, rank)
        theirs = DataLoader(data, ray_cluster.BATCH, sampler=sampler, num_workers=2)
        expected = ray_cluster.epochs_of(theirs, sampler)
        assert expected[0][0][0].ne(expected[1][0][0]).any()
        for batches in result["batches"]:
            for ours, wanted in zip(batches, expected, strict=True):
                assert_same(ours, wanted)


@pytest.mark.timeout(300)
def test_tasks_make_the_batches_of_one_machine(out, folder):
    data = ray_cluster.drawing(folder)
    ours = torch.load(out / "data.pt")
    orders = [ray_cluster.order(COUNT, epoch) for epoch in range(ray_cluster.EPOCHS)]
    sampler = iter(orders)

    class InTurn:
        def __iter__(self):
            return iter(next(sampler))

        def __len__(self):
            return COUNT

    loader = FastLoader(
        data,
        ray_cluster.BATCH,
        sampler=InTurn(),
        num_workers=2,
        randomness="sample",
        generator=torch.Generator().manual_seed(7),
        device="cpu",
    )
    for epoch in range(ray_cluster.EPOCHS):
        assert_same(ours[epoch], [(images, labels) for images, labels in loader])
