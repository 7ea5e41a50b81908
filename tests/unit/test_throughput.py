"""How fast a loop runs: arithmetic, the initial rush, the ceiling, ``fastload bench ceiling``."""

from __future__ import annotations

import json
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fastload import FastLoader
from fastload._arguments import FactoryError, call_factory
from fastload.bench.ceiling import ceiling_rate, fed_rate
from fastload.commands import cli
from fastload.measurement import clock, throughput
from fastload.measurement.throughput import (
    FEW_STEPS,
    EmptyLoaderError,
    endless,
    loop_rate,
    samples_in,
)

CPU = torch.device("cpu")


class Slow(Dataset):
    """Each sample takes ``seconds``."""

    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.zeros(2), index


@pytest.fixture
def simulated_time(monkeypatch):
    """A clock that advances only in sleep, so that machine load has no effect."""

    class Time:
        now = 0.0

        def sleep(self, seconds):
            self.now += seconds

        def perf_counter(self):
            return self.now

        process_time = staticmethod(time.process_time)

    found = Time()
    for module in (throughput, clock, sys.modules[__name__]):
        monkeypatch.setattr(module, "time", found)
    monkeypatch.setattr(throughput, "clock_for", lambda device: clock.HostClock())  # a GPU's own does not sleep


def sleeping(seconds):
    return lambda batch: time.sleep(seconds)


def batches_every(seconds, size=4):
    while True:
        time.sleep(seconds)
        yield torch.zeros(size, 3), torch.zeros(size)


def test_rate_and_wait_share_of_a_loop(simulated_time):
    rate = loop_rate(batches_every(0.02), sleeping(0.03), CPU, seconds=0.5, warm_steps=1)
    assert rate.images_per_s == pytest.approx(4 / 0.05)
    assert rate.wait_share == pytest.approx(0.4)
    assert rate.steps in (10, 11)  # as the sum of all sleeps is rounded
    assert rate.seconds == pytest.approx(rate.steps * 0.05)


def test_a_few_steps_are_measured_however_short_the_time():
    seen = []
    rate = loop_rate(batches_every(0.001), seen.append, CPU, seconds=1e-9, warm_steps=2)
    assert rate.steps == FEW_STEPS
    assert len(seen) == FEW_STEPS + 2


def test_whole_rounds_are_measured():
    """Of 4 workers whose batches come together, as many of each are counted."""
    for seconds in (1e-9, 0.03):
        rate = loop_rate(batches_every(0.001), id, CPU, seconds=seconds, warm_steps=0, rounds_of=4)
        assert rate.steps % 4 == 0
        assert rate.steps >= 8


def test_cores_that_were_kept_busy_are_counted():
    end = time.process_time() + 0.1

    def compute(batch):
        while time.process_time() < end:
            pass

    rate = loop_rate(batches_every(0.1), compute, CPU, seconds=1e-9, warm_steps=0)
    assert rate.cores * rate.seconds == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.zeros(5, 2), 5),
        ([torch.zeros(7, 2), torch.zeros(3)], 7),
        ({"name": "x", "scale": torch.tensor(1.0), "image": torch.zeros(6)}, 6),
        ("none", 1),
    ],
)
def test_samples_of_a_batch(batch, count):
    assert samples_in(batch) == count


def test_epochs_follow_each_other_and_an_empty_one_is_an_error():
    numbers = endless(range(2))
    assert [next(numbers) for _ in range(5)] == [0, 1, 0, 1, 0]
    with pytest.raises(EmptyLoaderError, match="must yield at least 1 batch per epoch, got 0"):
        next(endless([]))


def test_the_rush_of_batches_made_ahead_is_not_measured():
    """Batches made ahead during a slow first step must not make workers look faster."""
    slow_steps = iter([0.5])
    dataset = Slow(4000, 0.01)
    with FastLoader(dataset, batch_size=2, num_workers=2, prefetch_factor=16, device="cpu") as loader:
        rate = fed_rate(loader, lambda batch: time.sleep(next(slow_steps, 0.0)), seconds=0.2)
    assert 0.1 * 2 / 0.01 < rate.images_per_s < 1.4 * 2 / 0.01  # a sleep may take longer, and none less
    assert rate.wait_share > 0.5


@pytest.mark.each_value
@pytest.mark.parametrize("kind", [FastLoader, DataLoader])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_loop_fed_by_the_loader_ends_its_workers(kind, persistent):
    loader = kind(Slow(8, 0.001), batch_size=2, num_workers=1, persistent_workers=persistent)
    rate = fed_rate(loader, sleeping(0.005), seconds=0.6)
    assert rate.steps > 4  # more than an epoch
    assert [len(batch[1]) for batch in loader] == [2] * 4
    if persistent:
        loader._iterator._shutdown_workers()
        loader._iterator = None


@pytest.mark.parametrize("kind", [FastLoader, DataLoader])
def test_the_ceiling_is_the_rate_of_the_step(kind, simulated_time):
    measure = ceiling_rate(kind(Slow(64, 0.01), batch_size=4, num_workers=1), sleeping(0.01), seconds=0.3, hold=2)
    for _ in range(2):
        rate = measure()
        assert rate.images_per_s == pytest.approx(4 / 0.01)
        assert rate.wait_share == 0


@pytest.mark.parametrize("kind", [FastLoader, DataLoader])
def test_a_loader_that_is_too_slow_is_the_rate_of_the_loop(kind):
    loader = kind(Slow(64, 0.01), batch_size=4, num_workers=1)
    assert 10 < fed_rate(loader, sleeping(0.01), seconds=0.3).images_per_s < 110


@pytest.fixture
def factories(tmp_path, monkeypatch, simulated_time):
    (tmp_path / "my_factories.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "from fastload import FastLoader\n"
        "from fastload.measurement.throughput import time\n"
        "class Made:\n"
        "    @staticmethod\n"
        "    def inner():\n"
        "        return FastLoader(torch.arange(400.0), batch_size=4), lambda batch: time.sleep(0.02)\n"
        "def loader():\n"
        "    return DataLoader(torch.arange(6.0), batch_size=2)\n"
        "def sized(size, word='x'):\n"
        "    return DataLoader([word] * 10, batch_size=int(size))\n"
        "def number():\n"
        "    return 5\n"
        "def pair():\n"
        "    return loader(), loader()\n"
        "def named():\n"
        "    return {'train': loader(), 'val': loader()}\n"
        "def bad_step():\n"
        "    return loader(), 5\n"
        "value = 3\n"
        "def fails():\n"
        "    raise OSError('it broke')\n"
    )
    monkeypatch.delitem(sys.modules, "my_factories", raising=False)  # another test's, with a time of its own
    (tmp_path / "my_broken.py").write_text("import fastload_no_such_module\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_factory_makes_a_loader_or_a_loader_and_a_step(factories):
    loader, step = call_factory("my_factories:loader")
    assert isinstance(loader, DataLoader)
    assert step is None
    loader, step = call_factory("my_factories:Made.inner")
    assert isinstance(loader, FastLoader)
    assert callable(step)
    loader, _ = call_factory("my_factories:sized", ["5", "word"])
    assert next(iter(loader)) == ["word"] * 5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "the factory must be given as module:function, got 'nothing'"),
        (":x", "the factory must be given as module:function, got ':x'"),
        ("absent_module:f", "there must be a module absent_module to import, but No module named 'absent_module'"),
        ("my_factories:absent", "module my_factories must have a function absent, but it has none"),
        ("my_factories:value", "my_factories:value must be a function, got int"),
        ("my_factories:number", "my_factories:number must return a DataLoader, or (DataLoader, step), got int"),
        ("my_factories:pair", "my_factories:pair must return one DataLoader, got 2; name a function that returns one"),
        (
            "my_factories:named",
            "my_factories:named must return one DataLoader, got 2; name a function that returns one",
        ),
        ("my_factories:bad_step", "my_factories:bad_step must return a step that can be called with a batch, got int"),
    ],
)
def test_a_wrong_factory_says_what_is_wrong(factories, name, message):
    with pytest.raises(FactoryError) as caught:
        call_factory(name)
    assert str(caught.value) == message


@pytest.mark.parametrize("command", [["tune"], ["bench", "ceiling"], ["verify"]])
def test_a_factory_that_raises_is_named_below_its_traceback(factories, capsys, command):
    assert cli.main([*command, "my_factories:fails"]) == 2
    said = capsys.readouterr().err
    assert 'my_factories.py", line' in said
    assert said.endswith(": my_factories:fails raised OSError: it broke\n")


def test_an_error_inside_the_factorys_module_is_its_own(factories):
    with pytest.raises(ModuleNotFoundError, match="fastload_no_such_module"):
        call_factory("my_broken:f")


def test_bench_ceiling_compares_the_two_loops(factories, capsys, tmp_path):
    file = tmp_path / "ceiling.json"
    command = ["bench", "ceiling", "my_factories:Made.inner", "--seconds", "0.2", "--repeats", "2", "--json", str(file)]
    assert cli.main(command) == 0
    record = json.loads(file.read_text())
    for name in ("loader", "ceiling"):
        assert len(record["images_per_s"][name]["values"]) == 2
        assert record["images_per_s"][name]["median"] == pytest.approx(4 / 0.02)
    assert record["share"]["median"] == pytest.approx(1)
    assert "of the ceiling" in capsys.readouterr().out


def test_bench_ceiling_names_a_loader_that_is_too_slow(simulated_time):
    from fastload.bench.ceiling import measure, verdict

    loader = FastLoader(Slow(64, 0.005), batch_size=4)
    record = measure(loader, sleeping(0.01), seconds=0.2, repeats=1, hold=2)
    assert record["share"]["median"] == pytest.approx(1 / 3)
    assert record["wait_share"]["median"] == pytest.approx(2 / 3)
    assert "of the ceiling: a faster one gains up to" in verdict(record)
    assert "keeps the step fed" in verdict({"share": {"median": 0.99}})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my_factories:loader"], "my_factories:loader must return (loader, step)"),
        (["my_factories:absent"], "must have a function absent"),
        (["my_factories:loader", "--workers", "2"], "--workers goes without a factory"),
        (["--model", "resnet5"], "must be one of torchvision's classifiers, got 'resnet5'"),
        (["--data", "/no/such/folder"], "--data must be a folder"),
    ],
)
def test_bench_ceiling_refuses_wrong_arguments(factories, capsys, arguments, message):
    assert cli.main(["bench", "ceiling", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_bench_ceiling_runs_with_nothing_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "ceiling", "--quick"]) == 0
    assert "a perfect loader (replay)" in capsys.readouterr().out


def test_a_program_does_not_see_the_arguments_of_the_command(tmp_path, monkeypatch):
    """It may read its own as it is imported."""
    (tmp_path / "my_program.py").write_text(
        "import argparse\nargparse.ArgumentParser().parse_args()\nfrom torch.utils.data import DataLoader\n"
        "def loader():\n    return DataLoader([1, 2])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.argv", ["fastload", "verify", "my_program:loader", "--batches", "2"])
    assert len(call_factory("my_program:loader")[0]) == 2
    assert sys.argv[0] == "fastload"
