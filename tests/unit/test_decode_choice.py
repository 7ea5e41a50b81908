"""Test where batches are decoded, on simulated machines."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from costs import in_calls
from decode_machines import Always, Machine, changed, lost, run

from fastload.device.decode.choice import DecodeChoice
from fastload.device.decode.policy import HOLD_MIN, SETTLE, TRIAL_MAX, TRIAL_MIN, DecodedBatch, DecodePolicy, probed_of
from fastload.stats.stats import Totals

TOLERATED = 0.02
TOLERATED_FIRST = 0.1  # of the first 200 batches, where nothing is known at first
WEAK = {"kernel_s": 12e-3, "beside": 1.0}  # a GPU a tenth as fast
COSTLY = {"kernel_s": 4e-3, "beside": 1.0}

MACHINES = {
    "threads feed it": Machine(threads=8, step_s=0.05, decode_s=250e-6),
    "threads do not": Machine(threads=2, step_s=0.02),
    "one core": Machine(threads=1, step_s=0.05, decode_s=1e-3),
    "no model": Machine(threads=4, step_s=0.0),
    "no model, a weak GPU": Machine(threads=16, step_s=0.0, decode_s=250e-6, **WEAK),
    "a weak GPU": Machine(threads=8, step_s=0.02, decode_s=250e-6, **WEAK),
    "short steps, a costly GPU": Machine(threads=16, step_s=0.005, decode_s=250e-6, **COSTLY),
    "it costs more than the threads lack": Machine(threads=6, step_s=0.02, decode_s=500e-6, **COSTLY),
    "threads are just enough": Machine(threads=6, step_s=0.0215, decode_s=480e-6, noise=0.1),
    "bursts": Machine(threads=4, step_s=0.02, bursts=0.02, noise=0.1, read_s=50e-6),
    "noise": Machine(threads=4, step_s=0.05, noise=0.2, **COSTLY),
    "threads take the loop's cores": Machine(threads=2, step_s=0.05, host_s=0.05, decode_s=250e-6, slows_host=0.3),
    "a slow disk": Machine(threads=4, step_s=0.02, read_s=2e-3),
    "it waits for each step": Machine(threads=4, step_s=0.02, synchronizes=True),
    "pauses": Machine(threads=4, step_s=0.02, pauses=(100, 300, 500, 900, 1500)),
    "pauses in succession": Machine(threads=2, step_s=0.02, decodable_at=4, pauses=(2, 20, 21, 22, 27, 57)),
    "files for the GPU after the first epoch": Machine(threads=2, step_s=0.02, decodable_at=300, epochs_of=300),
    "the same, threads feed it": Machine(
        threads=8, step_s=0.05, decode_s=250e-6, decodable_at=300, epochs_of=300, **COSTLY
    ),
    "threads take the loop's cores, files for the GPU after the first epoch": Machine(
        threads=2, step_s=0.05, host_s=0.05, decode_s=250e-6, slows_host=0.3, decodable_at=200, epochs_of=200
    ),
    "no files for the GPU for a while": Machine(threads=2, step_s=0.02, undecodable=(600, 1200)),
    "short epochs": Machine(threads=2, step_s=0.02, epochs_of=12),
    "new files": Machine(threads=2, step_s=0.02, new_until=2000),
    "a new epoch": Machine(threads=4, step_s=0.02, new_until=600, epochs_of=600),
    "new files, cores to spare": Machine(threads=16, step_s=0.02, new_until=2000, beside=1.0, scan_s=100e-6),
    "new files, a weak GPU and cores to spare": Machine(
        threads=16, step_s=0.02, new_until=2000, beside=1.0, scan_s=100e-6, find_s=8e-3
    ),
    "new files that threads can feed": Machine(threads=8, step_s=0.05, decode_s=250e-6, new_until=2000, **COSTLY),
    "new files that threads cannot scan": Machine(threads=5, step_s=0.02, new_until=4000, scans=False),
    "the same, a costly search": Machine(threads=8, step_s=0.015, beside=1.0, find_s=4e-3, new_until=4000, scans=False),
    "faster steps": changed(Machine(threads=8, step_s=0.05, decode_s=480e-6, **COSTLY), 1000, step_s=0.01),
    "slower steps": changed(Machine(threads=2, step_s=0.02, **COSTLY), 1000, step_s=0.2),
    "larger images": changed(Machine(threads=8, step_s=0.05, **COSTLY), 1000, decode_s=2e-3),
    "smaller images": changed(Machine(threads=4, step_s=0.02, decode_s=600e-6, **COSTLY), 1000, decode_s=150e-6),
    "two changes": changed(changed(Machine(threads=8, step_s=0.05, **COSTLY), 700, step_s=0.01), 1400, step_s=0.05),
}


def losses(machine: Machine, batches: int = 2000) -> tuple[float, float, int]:
    share, first, got = lost(machine, DecodePolicy(), batches)
    return share, first, got.changes


@pytest.mark.parametrize("name", MACHINES)
def test_it_is_as_fast_as_the_better_side(name: str) -> None:
    share, first, changes = losses(MACHINES[name])
    assert share < TOLERATED
    assert first < TOLERATED_FIRST
    assert changes <= 12


@pytest.mark.parametrize("name", ["short steps, a costly GPU", "it costs more than the threads lack"])
@pytest.mark.parametrize("epochs_of", [8, 12])
def test_epochs_may_be_shorter_than_what_is_measured(name: str, epochs_of: int) -> None:
    assert losses(replace(MACHINES[name], epochs_of=epochs_of))[0] < 0.03


def test_threads_scan_new_files_if_that_is_much_faster_than_all_else() -> None:
    machine = Machine(threads=16, step_s=0.0, new_until=2000, decode_s=480e-6, scan_s=100e-6, find_s=8e-3)
    share, first, got = lost(machine, DecodePolicy(), 2000)
    assert share < TOLERATED
    assert first < 2 * TOLERATED_FIRST  # each batch before costs four
    assert got.chosen[100:].count("scan") == 1900


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("step_s", [0.0, 0.005, 0.02, 0.05, 0.2])
def test_it_is_as_fast_as_the_better_side_on_any_machine(threads: int, step_s: float) -> None:
    for decode_s in (250e-6, 480e-6, 1e-3):
        for other in ({}, {"noise": 0.15, "seed": 1}, {"bursts": 0.02, "seed": 2}, COSTLY, WEAK, {"epochs_of": 40}):
            machine = Machine(threads=threads, step_s=step_s, decode_s=decode_s, **other)
            share, first, changes = losses(machine)
            assert share < TOLERATED, machine
            assert first < TOLERATED_FIRST, machine
            assert changes <= 16, machine


@pytest.mark.parametrize("seed", range(3))
def test_chance_does_not_decide(seed: int) -> None:
    for name in ("noise", "it costs more than the threads lack", "threads are just enough", "bursts"):
        assert losses(replace(MACHINES[name], seed=seed))[0] < TOLERATED, name


def test_what_is_learnt_in_one_epoch_is_known_in_the_next() -> None:
    machine = Machine(threads=2, step_s=0.02, epochs_of=100)
    policy = DecodePolicy()
    run(machine, policy, 300)
    again = run(replace(machine, seed=1), policy, 40)
    best = run(replace(machine, seed=1), Always("find"), 40)
    assert all(again.sides)
    assert again.ends[-1] == best.ends[-1]


def test_the_other_side_is_asked_rarely() -> None:
    fed = run(MACHINES["threads feed it"], DecodePolicy(), 4000)
    assert sum(fed.sides[200:]) < 0.02 * 3800
    starved = run(MACHINES["threads do not"], DecodePolicy(), 4000)
    assert starved.sides.count(False) < 0.01 * 3800
    assert 3 <= len(starved.probes) <= 12


@pytest.mark.parametrize("epochs_of", [28, 53])
def test_it_may_be_asked_with_an_epochs_first_batch(epochs_of: int) -> None:
    asked = run(replace(MACHINES["threads do not"], epochs_of=epochs_of), DecodePolicy(), 2500).probes
    assert any(batch > 0 and batch % epochs_of == 0 for batch in asked)
    assert len(asked) == 7


def test_it_is_asked_again_if_the_rest_of_an_epoch_was_dropped() -> None:
    machine, policy = MACHINES["threads do not"], DecodePolicy()
    run(machine, policy, 52)
    assert [policy.choose()[1] for _ in range(3)] == [True, False, False]  # of batches that are never passed on
    assert len(run(machine, policy, 1000).probes) == 3


def test_a_probe_has_no_more_samples_than_its_batch() -> None:
    assert [probed_of(samples) for samples in (0, 1, 2, 15, 16, 256)] == [0, 1, 1, 1, 2, 32]


def test_files_that_the_index_does_not_know_are_no_evidence_about_the_gpu() -> None:
    machine = Machine(threads=2, step_s=0.02, decodable_at=400)
    policy = DecodePolicy()
    first = run(machine, policy, 400)
    assert first.chosen.count("find") < 50
    assert policy.why == "the GPU can decode none of the files"
    assert policy.starved is not None
    assert policy.starved > 0.5
    assert not policy.available
    offers = [policy.choose() for _ in range(200)]
    assert 8 <= offers.count(("find", False)) <= 30


def test_a_loop_that_threads_have_kept_fed_begins_with_them_when_the_index_knows_the_files() -> None:
    machine = Machine(threads=8, step_s=0.05, decode_s=250e-6, decodable_at=100, epochs_of=100)
    sides = run(machine, DecodePolicy(), 130).sides
    assert sum(sides) <= 2
    assert sides.index(True) == 100


def test_an_index_that_forgets_is_asked_rarely_and_used_again() -> None:
    machine = Machine(threads=2, step_s=0.02, undecodable=(300, 600))
    policy = DecodePolicy()
    begun = run(machine, policy, 600)
    assert not policy.available
    assert not policy.on_gpu
    assert policy.why == "the GPU can decode none of the files"
    assert all(begun.sides[10:32])
    sides = run(machine, DecodePolicy(), 700).sides
    assert all(sides[640:])


def test_a_gpu_far_too_slow_is_tried_for_a_few_batches_and_then_long_not() -> None:
    slow: Any = {"threads": 8, "decode_s": 250e-6, "times_kernels": False, "decodable_at": 100, "epochs_of": 100}
    fed = run(Machine(step_s=0.05, kernel_s=0.4, **slow), DecodePolicy(), 4000)
    assert 4 < sum(fed.sides) <= 14
    starved = run(Machine(step_s=0.0, kernel_s=0.1, **slow), DecodePolicy(), 4000)
    assert 4 < sum(starved.sides) <= 40


def test_sides_that_take_the_same_leave_it_to_threads() -> None:
    policy = DecodePolicy()
    run(Machine(threads=8, step_s=0.05, decode_s=250e-6, kernel_s=1e-6, beside=0.0, noise=0.0), policy, 400)
    assert not policy.on_gpu
    policy = DecodePolicy()
    run(Machine(threads=8, step_s=0.05, decode_s=250e-6, kernel_s=1e-4, beside=-1.0, noise=0.0), policy, 400)
    assert not policy.on_gpu  # 0.2% are not worth it


def test_a_trial_goes_on_while_chance_may_explain_the_difference() -> None:
    begun = 0
    for seed in range(20):
        policy = DecodePolicy()
        machine = Machine(threads=8, decode_s=250e-6, step_s=0.05, noise=0.25, kernel_s=3e-3, beside=1.0, seed=seed)
        run(machine, policy, 60)
        begun += not policy.on_gpu
        assert not policy.why.startswith("a batch took")
    assert begun > 10


def test_a_side_that_has_failed_is_tried_again_when_the_loop_has_changed() -> None:
    slow: Any = {"threads": 8, "decode_s": 250e-6, "times_kernels": False, "decodable_at": 100, "epochs_of": 100}
    machine = changed(Machine(step_s=0.0, kernel_s=20e-3, **slow), 1500, decode_s=3e-3)
    sides = run(machine, DecodePolicy(), 2000).sides
    assert sum(sides[:1500]) < 60
    assert sum(sides[1500:]) > 400


def test_threads_that_need_far_longer_are_not_asked_again() -> None:
    one_core = run(MACHINES["one core"], DecodePolicy(), 2000).sides
    assert one_core.count(False) <= 2
    reading = run(Machine(threads=1, step_s=0.0, decode_s=120e-6), DecodePolicy(), 2000).sides
    assert reading.count(False) <= 2  # they are the limit even when they only read


def test_threads_that_promise_more_than_they_keep_are_not_tried_again() -> None:
    machine = Machine(threads=4, step_s=0.034, decode_s=460e-6, unseen=0.6, **COSTLY)
    policy = DecodePolicy()
    sides = run(machine, policy, 3000).sides
    assert policy.on_gpu
    assert sides[200:].count(False) < 40


class FirstLaunch(DecodePolicy):
    """Is told a time of the kernels that their loading has made long."""

    def note(self, made: DecodedBatch, clock: Any = None) -> None:
        super().note(made if self.kernel_s else made._replace(kernel_s=0.5 * (made.staged > 0)), clock)


def test_the_first_launches_say_nothing_about_the_kernels() -> None:
    for machine in (MACHINES["threads do not"], replace(MACHINES["threads do not"], decodable_at=100, epochs_of=100)):
        assert lost(machine, FirstLaunch(), 600)[0] < TOLERATED


def test_batches_without_a_file_for_the_gpu_change_nothing_if_there_are_few() -> None:
    policy = DecodePolicy()
    for number in range(100):
        policy.note(DecodedBatch("find", 16, 4 * (number % 4 == 0), 0, 0.02))
        assert policy.available
        assert policy.on_gpu


def batches(policy: DecodePolicy, count: int, *, interval_s: float = 0.02, **fields: Any) -> None:
    for _ in range(count):
        side, _ = policy.choose()
        policy.note(DecodedBatch(side, 16, 16 if side != "threads" else 0, 0, interval_s, **fields))


def test_it_says_what_decided() -> None:
    policy = DecodePolicy()
    batches(policy, 1, kernel_s=0.001)
    assert policy.available
    assert policy.on_gpu
    assert policy.why == "how long threads take is not known yet"
    run(Machine(threads=2, step_s=0.02), policy, 100)
    assert policy.needed_s == pytest.approx(0.063, rel=0.2)  # it has had a batch decoded by threads in between
    assert policy.on_gpu
    run(Machine(threads=2, step_s=0.2, **COSTLY), policy, 200)
    assert not policy.on_gpu
    assert re.fullmatch(r"a batch took \d+ ms with the GPU decoding and \d+ ms with threads", policy.why)


def test_a_gpu_without_memory_is_left_alone() -> None:
    policy = DecodePolicy()
    batches(policy, 8)
    assert policy.on_gpu
    policy.give_up("the GPU had no memory left to decode in")
    assert not policy.on_gpu
    assert policy.why == "the GPU had no memory left to decode in"


def test_the_same_trial_is_not_repeated_soon() -> None:
    tried, policy = [], DecodePolicy()
    machine = Machine(threads=4, step_s=0.005, **COSTLY, decode_s=120e-6)
    sides = run(machine, policy, 3000).sides
    tried = [number for number in range(1, 3000) if sides[number] and not sides[number - 1]]
    assert tried
    late = [number for number in tried if number > 400]
    assert all(after - before >= HOLD_MIN for before, after in itertools.pairwise(late))
    assert len(late) <= 4


class FilesOf:
    gave_up: str | None = None
    decode_s = 0.001
    decoded = "find", 7, 7
    most_samples: int | None = None
    left = 0

    def is_ready(self) -> bool:
        return self.gave_up is None

    def to_learn(self) -> FilesOf | None:
        return self if self.left else None

    def learn(self, index: object) -> None:
        self.left -= 1

    def files(
        self, pixels: torch.Tensor, by_view: object, side: object = None, most_samples: int | None = None
    ) -> FilesOf:
        self.most_samples = most_samples
        return self


class Job:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def work_seconds(self) -> float:
        return self.seconds


class OneBatch:
    def __init__(self, staged: Any, work_s: float = 0.1) -> None:
        self.sources, self.staged, self.job = range(8), staged, Job(work_s)


def test_gpu_decodes_every_batch_if_told_so() -> None:
    decoder: Any = FilesOf()
    choice = DecodeChoice(decoder, None)
    choice.begin()
    assert choice.note(OneBatch(None), 0.0, 1) == 0
    assert choice.note(OneBatch(decoder), 0.0, 1) == 7
    assert [choice.files(torch.zeros(8), lambda pixels: [pixels]) for _ in range(3)] == [decoder] * 3


def test_the_index_learns_as_long_as_there_is_time() -> None:
    decoder: Any = FilesOf()
    decoder.left, time = 5, iter([True, True, False])
    choice = DecodeChoice(decoder, None)
    choice.learn(None, lambda: next(time))
    assert decoder.left == 3
    choice.learn(None, lambda: True)
    assert decoder.left == 0


class WithoutMemory(FilesOf):
    def learn(self, index: object) -> None:
        super().learn(index)
        raise MemoryError


def test_a_batch_does_not_fail_as_the_index_has_no_memory() -> None:
    decoder: Any = WithoutMemory()
    decoder.left = 2
    DecodeChoice(decoder, None).learn(None, lambda: True)
    assert decoder.left == 1


@pytest.mark.parametrize("policy", [None, DecodePolicy()])
def test_nothing_goes_to_the_gpu_once_it_has_given_up(policy: DecodePolicy | None) -> None:
    decoder: Any = FilesOf()
    choice = DecodeChoice(decoder, policy)
    assert choice.files(torch.zeros(8), lambda pixels: [pixels]) is decoder
    decoder.gave_up = "the kernel for transforms cannot be compiled"
    assert choice.files(torch.zeros(8), lambda pixels: [pixels]) is None
    assert policy is None or policy.why == decoder.gave_up


def test_threads_are_told_when_their_work_changes() -> None:
    decoder: Any = FilesOf()
    policy, now, told = DecodePolicy(), 100.0, []
    choice = DecodeChoice(decoder, policy, totals=Totals, clock=lambda: now)
    choice.on_change, choice.threads_max = lambda: told.append(policy.on_gpu), 4
    choice.begin()
    for _ in range(200):
        staged = choice.files(torch.zeros(8), lambda pixels: [pixels])
        took_s = 0.2 if staged is None else 0.02
        if staged is not None and staged.most_samples is not None:  # 7 of 8
            took_s = 0.875 * 0.02 + 0.125 * 0.2
        now += took_s
        choice.note(OneBatch(staged, took_s / 2), 0.0, 1)
    assert told[0]  # it has gone over to the GPU
    assert policy.needed_s == pytest.approx(0.1 / 4)  # of as many threads as there may be
    assert policy.kernel_s == pytest.approx(0.001)


def test_a_batch_costs_a_few_microseconds() -> None:
    decoder: Any = FilesOf()
    totals = Totals({"device:steps": 1.0})
    choice = DecodeChoice(decoder, DecodePolicy(), totals=lambda: totals)
    pixels, batch = torch.zeros(8), OneBatch(decoder)

    def one_batch() -> None:
        choice.files(pixels, lambda pixels: [pixels])
        choice.note(batch, 0.0, 1)

    assert in_calls(one_batch, number=100) < 500


def test_a_trial_ends_though_some_steps_look_like_pauses() -> None:
    """Steps of three lengths, in all of which the loader mostly waits."""
    noise, policy = random.Random(3), DecodePolicy()

    def note(batch: int) -> None:
        interval_s = (0.055 if batch % 16 == 15 else 0.010 if batch % 5 < 3 else 0.030) + 4e-4 * noise.random()
        policy.note(DecodedBatch("find", 32, 32, 0, interval_s, 0.85 * interval_s, threads=8))

    for batch in range(100):
        note(batch)
    policy._try("find")
    for batch in range(SETTLE + TRIAL_MAX):
        assert policy._phase == "trial" or batch >= SETTLE + TRIAL_MIN
        note(batch)
    assert policy._phase == "steady"
