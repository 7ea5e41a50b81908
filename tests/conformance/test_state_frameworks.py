"""Frameworks save a FastLoader's place and go on in another process: Lightning, Accelerate."""

from __future__ import annotations

import pytest
from interpreters import result_of

pytestmark = pytest.mark.slow

WORKERS = pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])


LIGHTNING = """
import json, logging, random, sys, warnings
warnings.simplefilter("ignore")
import lightning, numpy, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from fastload import FastLoader
from resuming import Drawing

workers, persistent, checkpoint, seed, options, out = json.loads(sys.argv[1])
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
seen = []

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)
    def training_step(self, batch, _):
        seen.append([self.current_epoch, self.global_step, batch.numpy().tobytes().hex()])
        torch.rand(1), random.random(), numpy.random.rand()
        return self.layer(batch.float()).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)
    def train_dataloader(self):
        return FastLoader(Drawing(), 4, shuffle=True, num_workers=workers, persistent_workers=persistent)

lightning.seed_everything(seed)
each = ModelCheckpoint(".", "{step}", every_n_train_steps=1, save_top_k=-1)
trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, callbacks=[each], **options,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Line(), ckpt_path=checkpoint, weights_only=False)
assert isinstance(trainer.train_dataloader, FastLoader)
json.dump([seen, torch.get_rng_state().tolist(), str(random.getstate())], open(out, "w"))
"""


@WORKERS
def test_lightning_resumes_with_the_same_bits(tmp_path, workers, persistent):
    def fit(checkpoint, seed):
        return result_of("lightning", tmp_path, LIGHTNING, workers, persistent, checkpoint, seed, {})

    expected = fit(None, 3)
    assert [step for _, step, _ in expected[0]] == list(range(18))
    for step in (4, 6, 9):  # 6 ends an epoch
        got = fit(f"step={step}.ckpt", 99)
        assert got[0] == expected[0][step:], step
        assert got[1:] == expected[1:], step


@pytest.mark.thorough
def test_lightning_resumes_after_an_epoch_of_fewer_batches(tmp_path):
    def fit(checkpoint, seed, persistent=False):
        options = {"limit_train_batches": 4}
        return result_of("lightning", tmp_path, LIGHTNING, 2, persistent, checkpoint, seed, options)

    expected = fit(None, 3)
    assert [epoch for epoch, _, _ in expected[0]] == [0] * 4 + [1] * 4 + [2] * 4
    assert fit("step=4.ckpt", 99)[0] == expected[0][4:]
    fit(None, 3, persistent=True)
    with pytest.raises(AssertionError, match=r"the loop leaves the epoch before its end.*use persistent_workers=False"):
        fit("step=4-v1.ckpt", 99, persistent=True)


ACCELERATE = """
import json, random, sys, warnings
warnings.simplefilter("ignore")
import numpy, torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from fastload import FastLoader
from resuming import Drawing, seed

workers, persistent, wraps, seedable, stop, resumes, out = json.loads(sys.argv[1])
configuration = DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=seedable, data_seed=5)
accelerator = Accelerator(cpu=True, dataloader_config=configuration)
seed(99 if resumes else 3)
dataset = Drawing() if wraps else list(range(23))
generator = None if seedable else torch.Generator().manual_seed(6)
options = {"num_workers": workers, "persistent_workers": persistent, "generator": generator}
loader = accelerator.prepare(FastLoader(dataset, 4, shuffle=wraps, **options))
if wraps:
    loader = FastLoader.wrap(loader)
    assert isinstance(loader, FastLoader) and isinstance(loader.base_dataloader, FastLoader)
else:
    assert type(loader.base_dataloader).__name__ == "StatefulDataLoader"
first = 0
if resumes:
    accelerator.load_state("saved")
    first = stop[0] + (stop[1] == 6)
elif stop == [0, 0]:
    accelerator.save_state("saved")
seen = []
for epoch in range(first, 3):
    loader.set_epoch(epoch)
    seen.append([])
    for batch in loader:
        seen[-1].append(batch.numpy().tobytes().hex())
        torch.rand(1), random.random(), numpy.random.rand()
        if stop == [epoch, len(seen[-1])] and not resumes:
            accelerator.save_state("saved")
json.dump([seen, torch.get_rng_state().tolist(), str(random.getstate())], open(out, "w"))
"""


@pytest.mark.parametrize(
    ("workers", "persistent", "seedable"), [(0, False, False), (0, False, True), (2, False, False), (2, True, True)]
)
@pytest.mark.parametrize("stop", [(0, 0), (0, 2), (1, 5), (1, 6)])
def test_accelerate_saves_and_loads_a_wrapped_loaders_place(tmp_path, workers, persistent, seedable, stop):
    def train(*, resumes):
        return result_of("accelerate", tmp_path, ACCELERATE, workers, persistent, True, seedable, stop, resumes)

    expected, *generators = train(resumes=False)
    assert [len(epoch) for epoch in expected] == [6, 6, 6]
    left = [expected[stop[0]][stop[1] :], *expected[stop[0] + 1 :]]
    got, *after = train(resumes=True)
    assert got == (left if left[0] else left[1:])
    assert after == generators


def test_accelerate_saves_and_loads_what_it_makes_of_a_fastloader(tmp_path):
    """Torchdata's loader, in order: of a shuffled one Accelerate's first epoch cannot be repeated."""
    for stop in [(0, 2), (1, 5)]:
        expected, *_ = result_of("accelerate", tmp_path, ACCELERATE, 2, False, False, True, stop, False)
        got, *_ = result_of("accelerate", tmp_path, ACCELERATE, 2, False, False, True, stop, True)
        assert got == [expected[stop[0]][stop[1] :], *expected[stop[0] + 1 :]]
