"""Simulate machines on which decode threads or a GPU decode.

Either finds the way into new files.

What is simulated is what ``native/pipeline.py`` and ``device/transfer.py`` do: up to three batches are with the
threads, which serve them in order; one batch is finished before it is requested; its copy waits while the consumer is
more than two batches ahead of the device. The device's clock is that of ``device/timing.py``.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Protocol

from fastload.device.decode.policy import DecodedBatch, Side, probed_of

IN_FLIGHT = 3
FIRST_TIMED, TIMED_PER_S = 16, 20


class Policy(Protocol):
    def begin(self) -> None: ...
    def choose(self) -> tuple[Side, bool]: ...
    def note(self, made: DecodedBatch, clock: object = None) -> None: ...


class Always:
    """Decodes all batches on one side."""

    def __init__(self, side: Side) -> None:
        self.side = side

    def begin(self) -> None:
        pass

    def choose(self) -> tuple[Side, bool]:
        return self.side, False

    def note(self, made: DecodedBatch, clock: object = None) -> None:
        pass


@dataclass(frozen=True)
class Machine:
    """One machine, its files and the loop on it.

    Attributes:
        threads: Decode threads, each with a core.
        step_s: Of the device for a batch; 0 without a model.
        decode_s: A thread's time for an image.
        stage_s: A thread's time for an image that the GPU decodes.
        kernel_s: The GPU's time to decode a batch.
        beside: The share of it by which a step takes longer.
        host_s: The consumer's own time for a step.
        synchronizes: Whether it waits for each step.
        slows_host: The share by which busy decode threads make ``host_s`` longer.
        finish_s: The pipeline thread's time for a batch.
        noise: Standard deviation of steps and of work on a batch, as a share.
        bursts: Share of batches whose files take ten times as long to read.
        read_s: A thread's time to read a file, on either side.
        images: Of a batch.
        decodable_at: First batch whose files the GPU can decode.
        new_until: First batch of the others, whose files are not new.
        find_s: The GPU's time to find its way into a batch of new files.
        scan_s: A thread's time to scan a new file.
        scans: Whether it can: small files have no points for the index.
        pauses: Batches before which the consumer does something else for two seconds.
        later: From which batches on another machine takes its place.
        epochs_of: Batches of an epoch.
        unseen: The share by which threads take longer than their work on a batch says.
        times_kernels: Whether the policy is told ``kernel_s``.
        undecodable: From and until which batch the GPU can decode no files.
        seed: Of the noise.
    """

    threads: int = 4
    step_s: float = 0.02
    decode_s: float = 480e-6
    stage_s: float = 50e-6
    kernel_s: float = 1e-3
    beside: float = 0.5
    host_s: float = 2e-3
    synchronizes: bool = False
    slows_host: float = 0.0
    finish_s: float = 1e-3
    noise: float = 0.05
    bursts: float = 0.0
    read_s: float = 10e-6
    images: int = 256
    decodable_at: int = 0
    new_until: int = 0
    find_s: float = 1.1e-3
    scan_s: float = 300e-6
    scans: bool = True
    pauses: tuple[int, ...] = ()
    later: tuple[tuple[int, Machine], ...] = ()
    epochs_of: int = 10**9
    unseen: float = 0.0
    times_kernels: bool = True
    undecodable: tuple[int, int] = (0, 0)
    seed: int = 0

    def decodes(self, batch: int, side: Side) -> bool:
        """Whether the GPU decodes a batch."""
        decodable = batch >= self.decodable_at and not self.undecodable[0] <= batch < self.undecodable[1]
        return decodable and (side == "find" or (side == "scan" and (self.scans or batch >= self.new_until)))

    def at(self, batch: int) -> Machine:
        """The machine that it is for a batch."""
        now = self
        for begin, other in self.later:
            if batch >= begin:
                now = other
        return now


@dataclass
class Run:
    """What a run took.

    Attributes:
        ends: When the device had finished each batch.
        sides: Whether the GPU decoded each.
        chosen: The sides that were chosen.
        probes: Batches of which threads decoded a part.
    """

    ends: list[float] = field(default_factory=list)
    sides: list[bool] = field(default_factory=list)
    chosen: list[Side] = field(default_factory=list)
    probes: list[int] = field(default_factory=list)

    @property
    def changes(self) -> int:
        """How often the side changed, without single batches in between."""
        kept = [a for a, b in itertools.pairwise(self.sides) if a == b]
        return sum(a != b for a, b in itertools.pairwise(kept))


def run(machine: Machine, policy: Policy, batches: int) -> Run:
    """Simulate ``batches``."""
    noise = random.Random(machine.seed)
    factors = [
        (max(0.2, noise.gauss(1, machine.noise)), max(0.2, noise.gauss(1, machine.noise)), noise.random())
        for _ in range(batches)
    ]
    result = Run()
    pool_free = pipeline_free = link_free = 0.0
    claimed = [0.0]  # when the batches were taken; the first is no batch
    ends = [0.0] * 3
    host_free = 0.0
    in_flight: deque[tuple[int, Side, int, float, float]] = deque()
    submitted = 0
    issued_last = 0.0
    clock = Clock()
    for number in range(batches):
        if number % machine.epochs_of == 0:
            policy.begin()
            clock = Clock()
            issued_last = 0.0
            submitted_end = min(batches, number + machine.epochs_of)
        now = machine.at(number)
        while submitted < submitted_end and len(in_flight) < IN_FLIGHT:
            then = machine.at(submitted)
            side, probes = policy.choose()
            on_gpu = machine.decodes(submitted, side)
            probed = probed_of(then.images) if probes and on_gpu else 0
            _, busy, burst = factors[submitted]
            stage_s = then.stage_s + (then.scan_s if side == "scan" and submitted < then.new_until else 0.0)
            share = 1 - probed / then.images if on_gpu else 0.0
            each_s = share * stage_s + (1 - share) * then.decode_s
            each_s += then.read_s * (10 if burst < then.bursts else 1)
            work_s = each_s * then.images * busy
            pool_free = max(pool_free, pipeline_free) + work_s * (1.0 + then.unseen) / then.threads
            in_flight.append((submitted, side, probed, pool_free, work_s))
            submitted += 1
        _, side, probed, done, work_s = in_flight.popleft()
        on_gpu, is_new = machine.decodes(number, side), number < now.new_until
        kernel_s = 0.0 if not on_gpu else now.kernel_s + (now.find_s if is_new and side == "find" else 0.0)
        step, _, _ = factors[number]
        begun = max(pipeline_free, claimed[-1] if number % machine.epochs_of else 0.0)
        blocked_s = begun - pipeline_free
        decoded = max(begun, done)
        room = max(decoded, ends[-3])
        blocked_s += room - decoded
        issued = room + now.finish_s
        ready = max(issued, link_free) + 1e-3 + kernel_s
        link_free = ready
        pause_s = 2.0 if number in machine.pauses else 0.0
        asks = (ends[-1] if now.synchronizes else host_free) + pause_s
        taken = max(asks, issued)
        claimed.append(taken)
        host_s = now.host_s * (1.0 if on_gpu else 1.0 + now.slows_host)
        host_free = taken + host_s
        begins = max(ends[-1], ready, taken)
        length_s = now.step_s * step + now.beside * kernel_s
        end = max(begins + length_s, host_free)
        clock.step(number, ends[-1], ready, end, issued)
        ends.append(end)
        result.ends.append(end)
        result.sides.append(on_gpu)
        result.chosen.append(side)
        if probed:
            result.probes.append(number)
        interval_s = issued - issued_last if issued_last else 0.0
        issued_last = pipeline_free = issued
        clock.pass_to(issued)
        images = now.images
        policy.note(
            DecodedBatch(
                side,
                images,
                images - probed if on_gpu else 0,
                images - probed if on_gpu and is_new else 0,
                interval_s,
                blocked_s,
                work_s,
                now.threads,
                kernel_s if now.times_kernels else 0.0,
                probed,
            ),
            clock.totals,
        )
    return result


class Clock:
    """Times steps as the device's clock does, in one epoch."""

    def __init__(self) -> None:
        self._sums = (0.0, 0.0, 0.0)
        self._pending: deque[tuple[float, float, float, float]] = deque()
        self._seen = 0
        self._recent_s = 0.0
        self._last = 0.0

    def step(self, number: int, before: float, ready: float, end: float, issued: float) -> None:
        took = min(1.0, issued - self._last) if self._last else 0.0
        self._last = issued
        self._recent_s = 0.98 * self._recent_s + 0.02 * took if self._seen > 1 else took
        share = 1.0 if self._seen < FIRST_TIMED else min(1.0, TIMED_PER_S * self._recent_s)
        if self._seen and (self._seen < FIRST_TIMED or self._seen * 0.6180339887498949 % 1.0 < share):
            self._pending.append((end, 1 / share, (end - before) / share, max(0.0, ready - before) / share))
        self._seen += 1

    def pass_to(self, now: float) -> None:
        while self._pending and self._pending[0][0] <= now:
            _, count, total_s, idle_s = self._pending.popleft()
            sums = self._sums
            self._sums = sums[0] + count, sums[1] + total_s, sums[2] + idle_s

    def totals(self) -> tuple[float, float, float]:
        return self._sums


def lost(machine: Machine, policy: Policy, batches: int) -> tuple[float, float, Run]:
    """The shares by which a policy is behind the best side.

    Returns:
        That of all batches, that of the first 200, and the policy's run.
    """
    got = run(machine, policy, batches)
    sides = [run(machine, Always(side), batches) for side in ("threads", "find", "scan")]
    best = min(sides, key=lambda side: side.ends[-1])
    first = min(batches, 200) - 1
    early = min(side.ends[first] for side in sides)
    return got.ends[-1] / best.ends[-1] - 1, got.ends[first] / early - 1, got


def changed(machine: Machine, at: int, **fields: object) -> Machine:
    """The same machine, with other fields from a batch on."""
    return replace(machine, later=(*machine.later, (at, replace(machine.at(10**9), later=(), **fields))))  # type: ignore[arg-type]
