"""All ranks' statistics, and the rank that waits most for its loader."""

from __future__ import annotations

import contextlib
import json
import os
import textwrap
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import interpreters
import pytest
import torch
import torch.distributed

from fastload import all_gather_stats
from fastload.stats.ranks import SHOWN_MAX, RankStats
from fastload.stats.stats import Stats, Totals, make_stats
from fastload.stats.verdict import Bottleneck

PROGRAM = """
    import json, os, sys
    import torch.distributed as dist
    import children
    from fastload import all_gather_stats
    from fastload.stats.stats import Totals, make_stats

    def gathered(rank):
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
        wait_s = 1.0 + 6 * rank
        totals = {"batches": 11, "images": 88, "asked": 10, "step_s": 10 - wait_s, "wait_s": wait_s}
        stats = make_stats(Totals({**totals, "epochs": 1, "waited:collate": wait_s}))
        ranks = all_gather_stats(stats)
        alone = [dist.new_group([each]) for each in (0, 1)]  # all ranks make all groups
        assert ranks.stats[rank] == stats
        assert all_gather_stats(stats, alone[rank]).stats == (stats,)
        try:
            all_gather_stats(stats, alone[1 - rank])
        except ValueError as error:
            refused = str(error)
        result = {**ranks.to_dict(), "said": str(ranks), "refused": refused}
        dist.destroy_process_group()
        return result

    def write(rank):
        with open(f"{sys.argv[1]}.{rank}", "w") as file:
            json.dump(gathered(rank), file)

    child = children.forked(lambda: write(1))
    write(0)
    sys.exit(children.exit_code(child))
"""


def of(wait_s: float, images: int = 88) -> Stats:
    totals = {"batches": 11, "images": images, "asked": 10, "step_s": 10 - wait_s, "wait_s": wait_s}
    return make_stats(Totals({**totals, "epochs": 1, "waited:collate": wait_s}), workers=2)


def test_every_rank_gets_the_statistics_of_all_and_the_slowest(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(Path(interpreters.__file__).parent), "GLOO_SOCKET_IFNAME": "lo"}
    done = interpreters.run(["-c", textwrap.dedent(PROGRAM), tmp_path / "store"], env=env)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"store.{rank}").read_text()) for rank in (0, 1))
    assert first == second
    assert [stats["wait_s"] for stats in first["stats"]] == [1.0, 7.0]
    assert first["slowest"] == 1
    assert first["sums"]["images"] == 176
    assert "rank 1 waited for batches 70% of the time, the others 10%" in first["said"]
    assert "this process is none of them" in first["refused"]


def test_without_a_process_group_there_is_one_rank():
    stats = of(1.0)
    ranks = all_gather_stats(stats)
    assert ranks.stats == (stats,)
    assert ranks.slowest == 0
    assert str(ranks).startswith("1 rank: 8 images/s together\nrank 0: ")
    assert ranks.report().stats is stats


def test_the_slowest_is_who_waits_and_not_who_is_slow():
    """Ranks that step together have one rate, whichever loader it is that holds them up."""
    ranks = RankStats((of(1.0), of(6.0), of(0.5)), ("a", "a", "b"))
    assert ranks.slowest == 1
    assert ranks.report().verdict.bottleneck is Bottleneck.COLLATE
    assert ranks.report(0).stats is ranks.stats[0]
    assert "rank 1 waited for batches 60% of the time, the others 5% to 10%" in str(ranks)
    assert "no rank's loader holds the others up" in str(RankStats((of(0.1), of(0.2)), ("a", "b")))


def test_numbers_of_ranks_are_summed_where_they_add_up():
    ranks = RankStats((of(1.0, images=88), of(2.0, images=44)), ("a", "b"))
    assert ranks.sums["images"] == 132
    assert ranks.sums["images_per_s"] == pytest.approx(8 + 4)
    assert ranks.extents["fastload/loader_stall"] == pytest.approx((0.1, 0.2))
    scalars = ranks.scalars("x", "_")
    assert scalars["x_slowest"] == 1
    assert (scalars["x_loader_stall_min"], scalars["x_loader_stall_max"]) == pytest.approx((0.1, 0.2))
    assert "x_loader_stall_sum" not in scalars
    assert scalars["x_wait_s_sum"] == pytest.approx(3.0)
    assert asdict(ranks)["hosts"] == ("a", "b")
    json.dumps(ranks.to_dict(), allow_nan=False)


def test_of_many_ranks_those_that_wait_most_are_printed():
    lines = str(RankStats((*[of(0.0)] * SHOWN_MAX, of(5.0)), ("host",) * (SHOWN_MAX + 1))).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  rank"))
    assert lines[first + 1].split()[:2] == [str(SHOWN_MAX), "host"]
    assert len(lines[first + 1 : -1]) == SHOWN_MAX
    assert lines[-1] == "  and 1 rank that waited less"


def test_objects_travel_by_the_device_of_the_process_group(monkeypatch):
    """NCCL sends from the current device, which is GPU 0 until a process sets another."""
    current = [0]

    @contextlib.contextmanager
    def device_index(index):
        before, current[0] = current[0], current[0] if index is None else index
        yield
        current[0] = before

    def all_gather_object(gathered, mine, group):
        gathered[:] = [mine] if current == [3] else []

    world = SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=torch.device("cuda", 3)))
    monkeypatch.setattr(torch.accelerator, "device_index", device_index)
    answers = {"is_initialized": lambda: True, "get_world_size": lambda group: 1, "group": world}
    for name, answer in {**answers, "all_gather_object": all_gather_object}.items():
        monkeypatch.setattr(torch.distributed, name, answer)
    assert len(all_gather_stats(of(1.0)).stats) == 1
    assert current == [0]
