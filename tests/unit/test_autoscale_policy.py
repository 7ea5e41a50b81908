"""Test ``num_workers="auto"`` with worker processes: its type, its trial, and its choices."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from backends.datasets import Slow
from plans import text_of
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from fastload import FastLoader
from fastload.autoscale import policy, probe
from fastload.autoscale.policy import AutoWorkers, Sizing, choose_processes, cores_for_loading, workers_needed
from fastload.autoscale.probe import Trial, run_trial
from fastload.stats.stats import Totals, make_stats


class Costly(Slow):
    """Slow samples that draw from every random state."""

    def __getitem__(self, index):
        super().__getitem__(index)
        return torch.rand(4), np.random.rand(), random.random(), index, get_worker_info().id


class Counting(torch.utils.data.Sampler):
    """A sampler with a state of its own."""

    def __init__(self, count):
        self.count, self.epoch, self.drawn = count, 0, 0

    def __len__(self):
        return self.count

    def __iter__(self):
        self.epoch += 1
        for index in range(self.count):
            self.drawn += 1
            yield (index + self.epoch) % self.count


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.fixture
def cores(monkeypatch):
    """Lets a test say how many cores there are."""

    def set_cores(count):
        monkeypatch.setattr(policy, "usable_cpus", lambda: count)
        monkeypatch.setattr(DataLoader, "check_worker_number_rationality", lambda self: None)

    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    set_cores(3)
    return set_cores


def values(batches):
    return [[leaf.tolist() for leaf in batch] for batch in batches]


def states():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


def test_the_number_is_an_int_from_the_start_and_stays_the_users_auto(cores):
    loader = FastLoader(Costly(40), batch_size=2, num_workers="auto")
    assert isinstance(loader.num_workers, int)
    assert loader.num_workers == 3
    assert loader.prefetch_factor == 2
    assert inspect.signature(FastLoader).parameters["num_workers"].default == 0
    next(iter(loader))
    assert isinstance(vars(loader)["num_workers"], AutoWorkers)
    assert 1 <= loader.num_workers <= 3
    loader.close()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_every_epoch_is_torchs_with_that_number_of_workers(cores, shuffle, persistent):
    arguments = {"batch_size": 3, "shuffle": shuffle}
    torch.manual_seed(5)
    before = states()
    with FastLoader(Costly(60), num_workers="auto", persistent_workers=persistent, **arguments) as loader:
        found = values(loader)
        count = int(loader.num_workers)
        after = torch.get_rng_state()
    assert states()[1:] == before[1:]
    torch.manual_seed(5)
    theirs = DataLoader(Costly(60), num_workers=count, **arguments)
    assert found == values(theirs)
    assert torch.equal(torch.get_rng_state(), after)


def test_the_trial_leaves_random_states_generator_sampler_and_dataset_alone(cores):
    sampler = Counting(30)
    dataset = Costly(30)
    dataset.seen = []
    generator = torch.Generator().manual_seed(3)
    loader = FastLoader(dataset, batch_size=2, sampler=sampler, num_workers="auto", generator=generator)
    before, drawn = states(), generator.get_state()
    found = run_trial(loader)
    assert found is not None
    assert found.batches > 0
    assert states() == before
    assert torch.equal(generator.get_state(), drawn)
    assert (sampler.epoch, sampler.drawn) == (0, 0)
    assert multiprocessing.active_children() == []


def test_the_trial_measures_what_a_sample_costs(cores):
    found = run_trial(FastLoader(Costly(400, 0.01), batch_size=5, num_workers="auto"))
    assert 0.01 <= found.cost_s < 0.045
    assert found.batch_s == pytest.approx(5 * found.cost_s)
    assert found.batch_bytes == 5 * (4 * 4 + 8 + 8 + 8 + 8)


def test_samples_that_are_not_batched_are_their_own_batches(cores):
    found = run_trial(FastLoader(Costly(400, 0.01), batch_size=None, num_workers="auto"))
    assert 0.01 <= found.cost_s == found.batch_s < 0.045


def test_the_trial_sees_a_worker(cores, tmp_path):
    class Asks(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            info = get_worker_info()
            (tmp_path / "seen").write_text(f"{info.id} {info.num_workers} {os.environ.get('OPENED')}")
            return index

    def open_worker(number):
        os.environ["OPENED"] = f"worker {number}"

    assert run_trial(FastLoader(Asks(), num_workers="auto", worker_init_fn=open_worker)) is not None
    assert (tmp_path / "seen").read_text() == "0 1 worker 0"
    assert "OPENED" not in os.environ


class Broken(Costly):
    def __getitem__(self, index):
        raise KeyError("no such sample")


def test_an_error_of_the_dataset_is_raised_by_the_epoch(cores, capfd):
    loader = FastLoader(Broken(8), batch_size=2, num_workers="auto")
    assert run_trial(loader) is None
    assert capfd.readouterr() == ("", "")
    with pytest.raises(KeyError, match="no such sample"):
        next(iter(loader))
    assert loader.num_workers == 3
    assert "the trial finished no batch" in loader.num_workers.sizing.why
    loader.close()


def test_a_worker_that_dies_in_the_trial_is_no_error_of_the_trial(cores):
    class Dies(Costly):
        def __getitem__(self, index):
            os._exit(3)

    assert run_trial(FastLoader(Dies(4), num_workers="auto")) is None


def test_samples_slower_than_the_trial_get_all_cores(cores, monkeypatch):
    monkeypatch.setattr(probe, "_FIRST_BATCH_S", 0.2)
    monkeypatch.setattr(probe, "_GRACE_S", 0.5)
    begun = time.perf_counter()
    assert run_trial(FastLoader(Costly(4, 150.0), num_workers="auto")) is None
    assert time.perf_counter() - begun < 60
    assert multiprocessing.active_children() == []


class Locked(Costly):
    """Its workers fetch one at a time."""

    def __init__(self, count, seconds):
        super().__init__(count, seconds)
        self.lock = multiprocessing.Lock()
        self.made = torch.zeros((), dtype=torch.int64).share_memory_()

    def __getitem__(self, index):
        with self.lock:
            time.sleep(self.seconds)
            self.made += 1
            return index


@pytest.mark.slow
def test_the_trial_is_not_ended_in_the_middle_of_a_sample(cores, monkeypatch):
    monkeypatch.setattr(probe, "_FIRST_BATCH_S", 2.0)
    dataset = Locked(40, 0.4)
    assert run_trial(FastLoader(dataset, batch_size=20, num_workers="auto")) is None
    assert 1 <= dataset.made < 20  # nor only at the end of the batch
    assert dataset.lock.acquire(timeout=30)


def error_of(loader):
    """Its type; the traceback, which holds on to half a loader, is gone."""
    try:
        next(iter(loader))
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_dataset_that_cannot_be_pickled_gets_torchs_own_error(cores, method):
    dataset = Costly(8)
    dataset.function = lambda: None
    loader = FastLoader(dataset, batch_size=2, num_workers="auto", multiprocessing_context=method)
    torchs = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context=method)
    assert error_of(loader) == error_of(torchs) is not None
    loader.close()


@pytest.mark.thorough
def test_spawned_workers_are_chosen_as_well(cores):
    cores(2)
    with FastLoader(Costly(12, 0.002), batch_size=2, num_workers="auto", multiprocessing_context="spawn") as loader:
        torch.manual_seed(1)
        found = values(loader)
        count = int(loader.num_workers)
        assert "a sample costs" in loader.num_workers.sizing.why
    torch.manual_seed(1)
    assert found == values(DataLoader(Costly(12), batch_size=2, num_workers=count, multiprocessing_context="spawn"))


def test_a_tiny_dataset_gets_no_more_workers_than_it_has_batches(cores):
    cores(16)
    with FastLoader(Costly(4, 0.01), batch_size=2, num_workers="auto") as loader:
        assert len(values(loader)) == 2
        assert loader.num_workers == 2
    with FastLoader(Costly(0), batch_size=2, num_workers="auto") as loader:
        assert values(loader) == []
        assert loader.num_workers == 1


def test_breaking_off_leaves_nothing_and_the_next_epoch_does_not_try_again(cores, monkeypatch):
    trials = []
    monkeypatch.setattr(probe, "run_trial", lambda loader: trials.append(loader) or Trial(4, 0.01, 0.02, 100))
    loader = FastLoader(Costly(40), batch_size=2, num_workers="auto")
    for _ in range(3):
        for _ in loader:
            break
    assert trials == [loader]
    loader.close()


def test_num_workers_may_be_set_by_hand_afterwards(cores):
    loader = FastLoader(Costly(12), batch_size=2, num_workers="auto")
    next(iter(loader))
    loader.num_workers = 2
    assert {batch[4][0].item() for batch in loader} == {0, 1}
    assert type(loader.num_workers) is int
    loader.close()


def rebuilt(loader, kind=FastLoader):
    """As Lightning and Accelerate rebuild a loader from its attributes."""
    names = [name for name in inspect.signature(kind).parameters if name in vars(loader)]
    skipped = ("batch_size", "sampler", "shuffle", "drop_last", "multiprocessing_context")
    return kind(**{name: vars(loader)[name] for name in names if name not in skipped})


def test_frameworks_that_rebuild_the_loader_keep_what_was_chosen(cores, monkeypatch):
    trials = []
    monkeypatch.setattr(probe, "run_trial", lambda loader: trials.append(1) or Trial(4, 0.5, 1.0, 100))
    loader = FastLoader(Costly(60), batch_size=2, num_workers="auto", persistent_workers=True)
    early = rebuilt(loader)
    next(iter(early))
    assert early.num_workers == 3
    early.close()
    late = rebuilt(early)
    assert isinstance(late.num_workers, AutoWorkers)
    next(iter(late))
    assert (late.num_workers, trials) == (3, [1])
    late.close()
    plain = rebuilt(late, DataLoader)
    assert plain.num_workers == 3


def test_copies_and_pickles_keep_it(cores):
    loader = FastLoader(range(8), num_workers="auto")
    loader.num_workers.sizing.processes = 2
    for twin in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert isinstance(twin.num_workers, AutoWorkers)
        assert twin.num_workers.sizing.processes == 2
        next(iter(twin))
        assert twin.num_workers == 2
        twin.close()


@pytest.mark.parametrize("wrong", ["all", 2.5, 2.0, None, [1]])
def test_neither_a_word_nor_a_number_of_workers_is_a_type_error(wrong):
    with pytest.raises(TypeError, match=re.escape(f"num_workers must be an int >= 0 or 'auto', got {wrong!r}")):
        FastLoader(range(8), num_workers=wrong)


@pytest.mark.parametrize("number", [True, np.int64(1), torch.tensor(1)])
def test_whatever_is_an_index_is_a_number_of_workers_as_in_torch(number):
    assert list(FastLoader(range(2), num_workers=number)) == list(DataLoader(range(2), num_workers=number))


def test_an_iterable_dataset_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"needs a dataset with __getitem__: .* got Stream; give a number"):
        FastLoader(Stream(), num_workers="auto")


def test_cores_are_shared_with_the_processes_beside_this_one(cores, monkeypatch):
    cores(16)
    assert cores_for_loading() == 16
    for text, count in (("4", 4), ("32", 1), ("", 16), ("x", 16), ("0", 16)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
        assert cores_for_loading() == count


@pytest.mark.parametrize(
    ("rate", "cost", "count"),
    [(1000, 0.003, 4), (1000, 0.0045, 5), (100, 0.001, 1), (1000, 1.0, 16), (1000, 10 / 1100, 10)],
)
def test_the_smallest_number_with_ten_per_cent_to_spare(rate, cost, count):
    assert workers_needed(rate, cost, 16) == count


def epoch(*, cost_s, rate, stall=0.0, waited="fetch", steps=50, device_stall=None, pinning=0.0):
    """Statistics of an epoch of 50 batches of 10.

    A consumer without a device waits for batches alone; one with a device also waits for that one.
    """
    busy_s = 10 * steps / rate
    elapsed = busy_s / (1 - (stall if device_stall is None else device_stall))
    step_s = elapsed * (1 - stall) * (1 if device_stall is None else 0.1)
    totals = {"batches": 50, "images": 500, "asked": steps, "step_s": step_s, "wait_s": elapsed - step_s}
    totals |= {"made:batches": 50, "made:fetch_s": 450 * cost_s, "made:collate_s": 50 * cost_s}
    totals |= {f"waited:{waited}": elapsed * stall, "waited:gpu": elapsed * (1 - stall) - step_s}
    if device_stall is not None:
        totals |= {"device:copies": steps, "device:steps": steps, "device:total_s": busy_s}
    if pinning:
        totals |= {"stage:pin:count": 50, "stage:pin:s": pinning * elapsed}
    return make_stats(Totals(totals))


@pytest.mark.parametrize(
    ("processes", "measured", "chosen"),
    [
        (16, epoch(cost_s=0.003, rate=1000), 4),
        (4, epoch(cost_s=0.003, rate=1000), 4),
        (5, epoch(cost_s=0.0037, rate=1000), 5),  # exactly
        (6, epoch(cost_s=0.0045, rate=1000), 6),  # 5 would do: not worth new workers
        (7, epoch(cost_s=0.0045, rate=1000), 5),  # two fewer would do
        (2, epoch(cost_s=0.003, rate=1000), 4),
        (4, epoch(cost_s=0.003, rate=1000, stall=0.05), 5),  # more than the estimate said
        (8, epoch(cost_s=0.003, rate=1000, stall=0.15), 11),  # eight that make 15% too little: 10.4 with 10% to spare
        (8, epoch(cost_s=0.003, rate=1000, stall=0.6), 11),  # but no more than a quarter above the least that may do
        (8, epoch(cost_s=0.003, rate=1000, stall=0.15, device_stall=0.15), 11),  # though it waits for the device, too
        (4, epoch(cost_s=0.003, rate=1000, stall=0.3, waited="pin"), 4),  # workers would not help
        (4, epoch(cost_s=0.003, rate=1000, stall=0.05, waited="ipc"), 5),  # computing, they are slow to send
        (4, epoch(cost_s=0.003, rate=1000, stall=0.05, waited="ipc", pinning=0.9), 4),  # no: the receiver is
        (8, epoch(cost_s=0.003, rate=1000, stall=0.05, waited="ipc"), 4),  # nor are they when idle
        (4, epoch(cost_s=0.003, rate=1000, stall=0.3, device_stall=0.0), 4),  # the device was busy all the time
        (16, epoch(cost_s=0.003, rate=90000, stall=0.9), 16),
        (9, epoch(cost_s=0.003, rate=1000, steps=3), 9),  # too short to tell
        (9, None, 9),
    ],
)
def test_the_next_epoch_gets_what_the_last_one_needed(cores, processes, measured, chosen):
    cores(16)
    loader = SimpleNamespace(num_workers=AutoWorkers(processes, Sizing(processes)))
    choose_processes(loader, measured)
    assert loader.num_workers == chosen
    assert isinstance(loader.num_workers, AutoWorkers)


def test_a_number_that_was_too_few_is_not_tried_again_until_the_consumer_is_another(cores):
    cores(16)
    loader = SimpleNamespace(num_workers=AutoWorkers(4, Sizing(4)))
    numbers = []
    for starved in (True, False, False):
        choose_processes(loader, epoch(cost_s=0.0034, rate=1000, stall=0.05 if starved else 0.0))
        numbers.append(int(loader.num_workers))
    assert numbers == [5, 5, 5]  # by the estimate 4 are enough
    choose_processes(loader, epoch(cost_s=0.0034, rate=200))
    assert loader.num_workers == 1
    choose_processes(loader, epoch(cost_s=0.0034, rate=1000))
    assert loader.num_workers == 4


def test_a_few_more_than_may_do_are_left_alone_and_many_more_are_not(cores):
    cores(16)
    for processes, chosen in ((9, 9), (11, 11), (12, 10), (16, 12)):
        loader = SimpleNamespace(num_workers=AutoWorkers(processes, Sizing(processes, too_few=8, estimate=7)))
        choose_processes(loader, epoch(cost_s=0.006, rate=1000))
        assert loader.num_workers == chosen


def settled(consumer, epochs=30):
    """The numbers that ``consumer``, a function of the number of processes, leads to."""
    loader = SimpleNamespace(num_workers=AutoWorkers(16, Sizing(16)))
    numbers = []
    for _ in range(epochs):
        numbers.append(int(loader.num_workers))
        choose_processes(loader, consumer(numbers[-1]))
    return numbers


@pytest.mark.parametrize("needed", [2, 5, 9, 12, 16])
@pytest.mark.parametrize("cost_s", [0.0005, 0.003, 0.008])
def test_an_estimate_that_is_wrong_is_corrected_and_not_tried_again_and_again(cores, needed, cost_s):
    """Such as where slow samples delay those behind them, which no mean shows."""
    cores(16)
    numbers = settled(lambda n: epoch(cost_s=cost_s, rate=1000, stall=max(0.0, 1 - n / needed)))
    enough = max(needed, workers_needed(1000, cost_s, 16))
    assert set(numbers[15:]) == {numbers[-1]}
    assert needed <= numbers[-1] <= 1.25 * enough


@pytest.mark.parametrize("waited", ["fetch", "ipc"])
def test_what_more_workers_do_not_shorten_does_not_take_all_cores(cores, waited):
    """A disk, say, that gives what it can to two workers as to ten."""
    cores(64)
    loader = SimpleNamespace(num_workers=AutoWorkers(4, Sizing(4)))
    for _ in range(20):
        choose_processes(loader, epoch(cost_s=0.002 * int(loader.num_workers), rate=1000, stall=0.5, waited=waited))
    assert loader.num_workers <= 16


def test_fewer_that_turn_out_slower_are_taken_back(cores):
    """Workers' batches take long to send, in a thread that none of their figures counts."""
    cores(16)
    numbers = settled(lambda n: epoch(cost_s=1e-4, rate=1000, stall=max(0.0, 1 - n / 4), waited="ipc"))
    assert set(numbers[15:]) == {numbers[-1]}
    assert 4 <= numbers[-1] <= 8


def test_an_epoch_is_judged_by_the_processes_that_it_had(cores, monkeypatch):
    cores(3)
    seen = []
    monkeypatch.setattr(policy, "consumption", lambda epoch, processes: seen.append((epoch.workers, processes)))
    with FastLoader(Costly(64, 0.005), batch_size=2, num_workers="auto") as loader:
        for _ in range(2):
            list(loader)
    assert seen == [(3, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_the_second_epoch_has_as_many_workers_as_the_first_one_asked_for(cores, persistent):
    cores(8)
    with FastLoader(Costly(64, 0.01), batch_size=2, num_workers="auto", persistent_workers=persistent) as loader:
        seen = []
        for _ in range(3):
            workers = set()
            for batch in loader:
                workers.update(batch[4].tolist())
                time.sleep(0.02)
            assert workers == set(range(loader.num_workers))
            seen.append(int(loader.num_workers))
        assert seen[0] == 8
        assert 2 <= seen[1] <= 4
        assert "the consumer takes" in loader.num_workers.sizing.why


def test_light_samples_get_few_workers_at_once(cores):
    cores(16)

    class Light(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            return index

    with FastLoader(Light(), batch_size=1, num_workers="auto") as loader:
        next(iter(loader))
        assert loader.num_workers <= 8  # a message costs more than such a sample


CTRL_C = """
import time, torch
from fastload import FastLoader
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, index):
        print("trying", flush=True)
        time.sleep(100)
        return index
try:
    next(iter(FastLoader(Slow(), num_workers="auto")))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.thorough
def test_ctrl_c_in_the_trial_leaves_no_process():
    child = subprocess.Popen(
        [sys.executable, "-c", CTRL_C],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout.readline() == "trying\n"
    family = psutil.Process(child.pid).children(recursive=True)
    assert len(family) == 1
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert (out, err, child.returncode) == ("interrupted\n", "", 0)
    psutil.wait_procs(family, timeout=60)
    assert not any(process.is_running() for process in family)


def test_the_plan_says_why_so_many(cores):
    loader = FastLoader(Costly(40, 0.001), batch_size=2, num_workers="auto")
    assert "note: num_workers='auto': a short trial before the first epoch decides" in text_of(loader)
    next(iter(loader))
    assert re.search(r"note: num_workers='auto': a sample costs \d[\d.]* ms", text_of(loader))
    loader.close()
