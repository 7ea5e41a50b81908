"""Test what is said about decoding on the GPU, such as its cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from backends import simulated
from photos import make_folder, train_v1
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.device.decode import loader_allows
from fastload.device.decode.files import Decoder
from fastload.device.decode.policy import DecodePolicy
from fastload.device.timing import DeviceClock
from fastload.loader_state import state_of
from fastload.plan import make_plan
from fastload.route import Route
from fastload.stats.diagnosis import report
from fastload.stats.stats import Stats, Totals, make_stats
from fastload.stats.verdict import LESS_ON_GPU, Bottleneck
from fastload.workers.start import route_of


class Event:
    now = 0.0

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, stream: object = None) -> None:
        self.at = Event.now

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


class Device:
    Event = Event


def one_step(clock: DeviceClock, *, decode_ms: float, step_ms: float, idle_ms: float = 0.0) -> None:
    """Copy in 2 ms, decode there unless threads did, then run a step."""
    timing = clock.begin(None)
    Event.now += 2.0 + idle_ms
    if decode_ms:
        timing.on_gpu = True
        timing.decode = clock.event(), clock.event()
        timing.decode[0].record()
        Event.now += decode_ms
        timing.decode[1].record()
    timing.copied, timing.ready = clock.event(), clock.event()
    timing.copied.record()
    timing.ready.record()
    clock.handed(timing)
    Event.now += step_ms
    end = clock.event()
    end.record()
    clock.step_ended(end)


def test_the_clock_tells_decoding_from_copying() -> None:
    clock = DeviceClock(Device)
    for _ in range(5):
        one_step(clock, decode_ms=3.0, step_ms=10.0)
    stats = make_stats(clock.totals())
    assert stats.stages["gpu_decode"].mean_s == pytest.approx(3e-3)
    assert stats.stages["h2d"].mean_s == pytest.approx(2e-3)
    assert stats.device is not None
    assert stats.device.idle_s == pytest.approx(4 * 5e-3)
    assert stats.device.decoding_s == pytest.approx(4 * 3e-3)
    assert stats.device.copying_s == pytest.approx(4 * 2e-3)


def test_steps_are_counted_by_where_the_batches_around_them_were_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastload.device.timing.ALL_OF_FIRST", 1000)
    clock = DeviceClock(Device)
    for _ in range(3):
        for _ in range(20):
            one_step(clock, decode_ms=0.0, step_ms=10.0)
        for _ in range(20):
            one_step(clock, decode_ms=3.0, step_ms=11.0)
    stats = make_stats(clock.totals())
    assert stats.device is not None
    # Not the three after each change, nor the first two of all.
    assert (stats.device.thread_steps, stats.device.gpu_steps) == (18 + 17 + 17, 3 * 17)
    assert stats.gpu_decode_is_compared
    assert stats.gpu_decode_cost_s == pytest.approx(1e-3)
    assert stats.gpu_decode_share == pytest.approx(1 / 11)


def test_without_steps_beside_threads_the_kernels_are_an_upper_bound() -> None:
    clock = DeviceClock(Device)
    for _ in range(16):
        one_step(clock, decode_ms=3.0, step_ms=12.0)
    stats = make_stats(clock.totals())
    assert not stats.gpu_decode_is_compared
    assert stats.gpu_decode_cost_s == pytest.approx(3e-3)
    assert stats.gpu_decode_share == pytest.approx(0.25)
    assert make_stats(Totals()).gpu_decode_cost_s is None
    assert make_stats(Totals()).gpu_decode_share == 0.0


def figures(*, idle_s: float, decoding_s: float = 0.0, kernels_ms: float = 1.0, compared: bool = True) -> Stats:
    """Of 100 steps of 20 ms each, of which decoding takes 1 ms."""
    totals: dict[str, float] = {"batches": 101, "images": 101 * 8, "epochs": 1, "asked": 100, "copied": 101}
    totals |= {"gpu_images": 700, "thread_images": 100, "python_images": 8, "step_s": 2.0 - idle_s, "wait_s": idle_s}
    totals |= {"waited:decode": idle_s, "behind_s": 1.9 if not idle_s else 0.0}
    totals |= {"device:steps": 100, "device:total_s": 2.0, "device:idle_s": idle_s, "device:decoding_s": decoding_s}
    totals |= {"device:copies": 100, "device:gpu_steps": 80, "device:gpu_busy_s": 1.6}
    totals |= {"device:threads_steps": 20, "device:threads_busy_s": 20 * 0.019} if compared else {}
    for name, ms in {"fetch": 1.0, "decode": 3.0, "collate": 0.1, "h2d": 0.5, "gpu_decode": kernels_ms}.items():
        totals |= {f"stage:{name}:count": 100, f"stage:{name}:s": ms * 0.1}
    return make_stats(Totals(totals), workers=2)


def test_a_busy_gpu_is_told_what_decoding_costs_it() -> None:
    verdict = report(figures(idle_s=0.0)).verdict
    assert verdict.bottleneck is Bottleneck.GPU
    assert "decoding there makes a step 1.00 ms longer (5.0%)" in verdict.evidence
    assert verdict.remedy == LESS_ON_GPU
    text = str(report(figures(idle_s=0.0)))
    assert (
        "decoded: 700 images by the GPU (1.00 ms a batch of its time; that makes a step 1.00 ms longer (5.0%)), "
        "100 by threads, 8 in Python"
    ) in text


def test_what_costs_little_is_no_remedy() -> None:
    verdict = report(figures(idle_s=0.0, kernels_ms=0.2, compared=False)).verdict
    assert verdict.bottleneck is Bottleneck.GPU
    assert verdict.remedy != LESS_ON_GPU
    assert "a step up to 0.20 ms longer" in str(report(figures(idle_s=0.0, kernels_ms=0.2, compared=False)))


def test_a_gpu_that_idles_while_it_decodes_is_decode_bound() -> None:
    verdict = report(figures(idle_s=1.0, decoding_s=0.9, kernels_ms=19.0)).verdict
    assert verdict.bottleneck is Bottleneck.DECODE
    assert "while the GPU decoded the next batch (19.00 ms each)" in verdict.evidence[1]
    assert verdict.remedy.startswith(LESS_ON_GPU)
    threads = report(figures(idle_s=1.0, decoding_s=0.05)).verdict
    assert threads.bottleneck is Bottleneck.DECODE
    assert "decode threads" in threads.evidence[1]
    assert not threads.remedy.startswith(LESS_ON_GPU)


def test_statistics_name_both_sides() -> None:
    assert "700 by the GPU, 100 by threads" in repr(figures(idle_s=0.0))
    assert "by the GPU" not in repr(make_stats(Totals({"images": 8, "thread_images": 8})))


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> FastLoader[Any]:
    simulated.install(monkeypatch)
    monkeypatch.setattr(loader_allows, "not_on_gpu_because", lambda loader, recipe, device: None)
    return FastLoader(ImageFolder(make_folder(tmp_path, 3), train_v1()), num_workers=1, device="cuda")


def note_of(loader: FastLoader[Any], stats: Stats) -> str:
    (note,) = [note for note in make_plan(loader, route_of(loader), stats).notes if "decode" in note]
    return note


def test_the_plan_says_what_was_decided_and_why(loader: FastLoader[Any]) -> None:
    begins = "the GPU decodes, where that makes the loop faster, JPEG files"
    note = note_of(loader, make_stats(Totals()))
    assert note.startswith(begins)
    assert "so far" not in note
    policy = state_of(loader).decode_policies[torch.device("cuda", 0)] = DecodePolicy()
    counts = "images so far: 700 by the GPU, 100 by threads, 8 by Python"
    now = "now the GPU decodes, as how long threads take is not known yet"
    assert note_of(loader, figures(idle_s=0.0)).endswith(f"; {counts}; {now}")
    policy.side, policy.why = "threads", "with threads the GPU waited for batches 62% of the time"
    assert note_of(loader, figures(idle_s=0.0)).endswith(f"; {counts}; now threads decode, as {policy.why}")


def test_the_plan_says_why_the_gpu_was_given_up(loader: FastLoader[Any]) -> None:
    decoder = state_of(loader).decoder("auto", torch.device("cuda", 0))
    decoder.gave_up = "the GPU had no memory left to decode in"
    told = "decode threads decode every image: "
    assert note_of(loader, figures(idle_s=0.0)) == f"{told}the GPU had no memory left to decode in"


def test_the_plan_says_how_many_files_were_not_read(loader: FastLoader[Any]) -> None:
    stats = make_stats(Totals({"images": 10, "gpu_images": 10, "kept_images": 7}))
    assert "; 7 files were in the GPU's memory, and not read" in note_of(loader, stats)


def test_the_plan_says_that_threads_decode_while_kernels_are_compiled(
    loader: FastLoader[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Decoder, "is_compiling", True)
    device = torch.device("cuda", 0)
    state_of(loader).decoder("auto", device)
    state_of(loader).decode_policies[device] = DecodePolicy()
    now = "; now threads decode, as the GPU's kernels are being compiled"
    assert note_of(loader, figures(idle_s=0.0)).endswith(now)


def test_the_plan_says_who_makes_the_pixels_of_deferred_images(loader: FastLoader[Any]) -> None:
    def says(route: Route, stats: Stats) -> str:
        (note,) = [note for note in make_plan(loader, route, stats).notes if note.startswith("deferred")]
        return note

    none = make_stats(Totals())
    route = replace(
        route_of(loader), maker="python", recipe=None, is_lazy=True, is_deferred=True, no_slots=None, not_on_gpu=None
    )
    gpu = "deferred: the GPU, from slots, makes the pixels when a batch is sent"
    workers = "deferred: the workers make the pixels when a batch is sent"
    assert says(route, none) == gpu
    assert says(replace(route, no_slots="nothing can be pinned"), none) == workers
    assert says(replace(route, not_on_gpu="decode='cpu'"), none) == workers
    assert says(replace(route, device=torch.device("cpu")), none) == workers
    state_of(loader).decoder("auto", torch.device("cuda", 0)).gave_up = "the GPU had no memory left to decode in"
    assert says(route, none) == workers
    looked = make_stats(Totals({"made:deferred": 7000, "made:looked_at": 12}))
    assert says(route, looked) == f"{workers}; so far of 7,000 images, which the program looked at 12 times before"


def test_images_made_by_threads_are_counted(tmp_path: Any) -> None:
    loader = FastLoader(
        ImageFolder(make_folder(tmp_path, 5), train_v1()), batch_size=2, num_workers=1, device="cpu", engine="native"
    )
    for _ in range(2):
        assert len(list(loader)) == 3
    stats = loader.stats()
    assert (stats.thread_images, stats.gpu_images, stats.python_images) == (10, 0, 0)
