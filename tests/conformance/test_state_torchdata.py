"""FastLoader in the place of torchdata's StatefulDataLoader, and samplers within samplers as Accelerate's."""

from __future__ import annotations

import pytest
import torch
from resuming import Drawing, check, flat, seed
from torch.utils.data import BatchSampler, RandomSampler

from fastload import FastLoader

WORKERS = pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls what torch deprecates


def stateful(workers, persistent=False, kind=None):
    kind = kind or pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    return kind(Drawing(), 4, shuffle=True, num_workers=workers, persistent_workers=persistent)


@pytest.mark.slow
@WORKERS
def test_a_wrapped_stateful_loader_has_torchdatas_batches_and_our_state(workers, persistent):
    def epochs(wraps):
        seed(4)
        loader = stateful(workers, persistent)
        loader = FastLoader.wrap(loader, device="cpu") if wraps else loader
        return [[flat(batch) for batch in loader] for _ in range(3)]

    assert epochs(wraps=True) == epochs(wraps=False)
    check(lambda: FastLoader.wrap(stateful(workers, persistent), device="cpu"), [(0, 0), (0, 2), (1, 6), (2, 5)])


def test_a_wrapped_stateful_loader_has_nothing_of_torchdatas_left():
    loader = FastLoader.wrap(stateful(0))
    assert type(loader) is FastLoader
    assert {name for name in vars(loader) if name not in vars(FastLoader(Drawing()))} == set()


@pytest.mark.parametrize(("workers", "asked"), [(0, False), (0, True), (2, True)])
def test_a_stateful_loader_with_a_loaded_state_is_not_taken_over(workers, asked):
    saved = stateful(workers)
    next(iter(saved))
    loader = stateful(workers)
    assert loader.state_dict()
    assert isinstance(FastLoader.wrap(loader), FastLoader)
    loader.load_state_dict(saved.state_dict())
    assert not asked or loader.state_dict()  # which makes its iterator, as Accelerate does
    with pytest.raises(ValueError, match=r"has loaded no state.*prefetch_to_device"):
        FastLoader.wrap(loader)


@pytest.mark.parametrize("method", ["__iter__", "_get_iterator", "state_dict", "load_state_dict"])
def test_a_stateful_loader_of_ones_own_is_not_taken_over(method):
    kind = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    own = type("Own", (kind,), {method: lambda self, *given: getattr(super(type(self), self), method)(*given)})
    with pytest.raises(TypeError, match=r"cannot take over Own.*prefetch_to_device"):
        FastLoader.wrap(stateful(0, kind=own))
    assert type(FastLoader.wrap(stateful(0, kind=type("Same", (kind,), {})))) is FastLoader


class Shard(BatchSampler):
    """Deals another batch sampler's batches, as Accelerate's BatchSamplerShard does."""

    def __init__(self, batch_sampler):
        self.batch_sampler = batch_sampler

    def __iter__(self):
        return iter(list(self.batch_sampler)[1::2])

    def __len__(self):
        return len(self.batch_sampler) // 2


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_generators_of_samplers_within_samplers_go_on(workers):
    def make():
        sampler = RandomSampler(range(46), generator=torch.Generator().manual_seed(1))
        return FastLoader(Drawing(46), batch_sampler=Shard(BatchSampler(sampler, 4, False)), num_workers=workers)

    check(make, [(0, 2), (1, 3), (2, 5)])
