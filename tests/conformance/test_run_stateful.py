"""torchdata's StatefulDataLoader under ``fastload run``: its own class and state, batches on a simulated device."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import interpreters
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torchdata") is None, reason="torchdata is not installed"),
]

TESTS = Path(__file__).parents[1]
WORKERS = pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])

# Without a stop, samples, sampler and loop draw from the same generators; torchdata resumes none of these.
PROGRAM = """
import hashlib, json, random, sys, warnings
import pytest, torch
warnings.simplefilter("ignore")  # torchdata calls what torch deprecates
place, resumes, workers, persistent, stop, out, state_file = json.loads(sys.argv[1])

if place == "device":
    from fastload.commands.run import patch, stateful
    from backends import simulated

    patched = pytest.MonkeyPatch()
    simulated.install(patched)
    handed = []
    class Transfer(simulated.SimulatedTransfer):
        def take(self, copied):
            handed.append(1)
            return super().take(copied)
    patched.setattr(stateful, "Transfer", Transfer)
    patched.setattr(torch.cuda, "current_device", lambda: 0)
if place != "torch":
    from fastload.commands.run import patch
    patch.install({"dtype": torch.float64})

from resuming import Drawing
from torch.utils.data import Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

class Lazy(Sampler):
    # Draws from the global generators whenever an index is asked for.
    def __iter__(self):
        return (int(torch.randint(23, ()).item() + random.randrange(23)) % 23 for _ in range(23))
    def __len__(self):
        return 23

def make():
    options = {"num_workers": workers, "persistent_workers": persistent}
    if stop is None:
        return StatefulDataLoader(Drawing(), 4, sampler=Lazy(), **options)
    return StatefulDataLoader(range(23), 4, shuffle=True, **options)

def digest(state):
    plain = torch.utils._pytree.tree_map(lambda leaf: leaf.tolist() if torch.is_tensor(leaf) else leaf, state)
    return hashlib.sha256(repr(plain).encode()).hexdigest()

torch.manual_seed(3); random.seed(3)
loader, seen = make(), []
if resumes:
    torch.rand(1)
    loader.load_state_dict(torch.load(state_file, weights_only=False))
    assert loader.state_dict()  # makes the iterator, as Accelerate does
for epoch in range(3):
    seen.append([])
    for batch in loader:
        state = loader.state_dict()
        seen[-1].append([batch.double().cpu().numpy().tobytes().hex(), digest(state)])
        torch.rand(1), random.random()  # as the training step does
        if not resumes and stop == [epoch, len(seen[-1])]:
            torch.save(state, state_file)
        if stop is None and epoch == 1 and len(seen[-1]) == 2:
            break
drawn = [torch.get_rng_state().tolist(), str(random.getstate())]
json.dump([seen, drawn], open(out, "w"))
if place != "torch":
    count = sum(map(len, seen))
    stats = loader.stats()
    assert place == "gpu" or len(handed) == count, (count, handed)
    assert stats.batches == stats.copied == count, (count, stats)
    assert stats.epochs == sum(map(bool, seen)), stats
    assert str(loader.plan).startswith("engine torch, batches on cuda:0"), loader.plan
    assert type(loader) is StatefulDataLoader and loader.num_workers == workers
    iterator = iter(loader)
    next(iterator)
    assert iterator.scheduler._borrows == (workers == 0)  # the dataset's own memory is copied before its next sample
    processes = getattr(loader._iterator, "_workers", [])
    loader.close()
    with pytest.raises(RuntimeError, match="the FastLoader of this iterator was closed"):
        next(iterator)
    assert loader.state_dict()
    assert len(processes) == workers and not any(process.is_alive() for process in processes)

    class WithoutState(torch.utils.data.DataLoader):
        def _get_iterator(self):
            return super()._get_iterator()
        def __iter__(self):
            return self._get_iterator()

    assert isinstance(iter(WithoutState(range(2))), torch.utils.data.dataloader._BaseDataLoaderIter)
"""


def run(tmp_path, place, workers, persistent, stop=None, *, resumes=False):
    """Return each epoch's batches with the state after each, and the generators at the end."""
    out = tmp_path / f"{place}.json"
    arguments = json.dumps([place, resumes, workers, persistent, stop, str(out), str(tmp_path / "state.pt")])
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    done = interpreters.run([script, arguments], env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@WORKERS
@pytest.mark.parametrize("place", ["device", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_batches_states_and_draws_are_torchdatas(tmp_path, workers, persistent, place):
    expected = run(tmp_path, "torch", workers, persistent)
    got = run(tmp_path, place, workers, persistent)
    assert got[0] == expected[0]
    assert got[1] == expected[1]


@WORKERS
@pytest.mark.parametrize("stop", [(0, 2), (1, 6)])
def test_a_new_process_goes_on_after_the_batches_handed_over(tmp_path, workers, persistent, stop):
    epochs, _ = run(tmp_path, "device", workers, persistent, stop)
    epoch, batches = stop
    expected = [epochs[epoch][batches:], *epochs[epoch + 1 :]]
    for place in ("device", "torch"):  # the state is torchdata's own
        resumed, _ = run(tmp_path, place, workers, persistent, stop, resumes=True)
        assert [[batch for batch, _ in one] for one in resumed[: len(expected)]] == [
            [batch for batch, _ in one] for one in expected
        ], place
