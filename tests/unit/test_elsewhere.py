"""Without a native core, on other systems than Linux, FastLoader is torch's loader."""

from __future__ import annotations

import warnings

import interpreters
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from fastload.elsewhere import LoaderElsewhere as FastLoader

DATA = TensorDataset(torch.arange(10))


def batches(loader):
    torch.manual_seed(3)
    return [batch.tolist() for (batch,) in loader]


def test_batches_are_torchs_and_nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = FastLoader(DATA, 4, shuffle=True, memory_format=None, device_prefetch=2, engine="torch", decode="cpu")
    with loader:
        assert batches(loader) == batches(DataLoader(DATA, 4, shuffle=True))
    assert FastLoader(DATA, num_workers="auto").num_workers > 0


@pytest.mark.parametrize(
    "asked",
    [{"dtype": torch.float16}, {"max_pinned_bytes": 1 << 30}, {"randomness": "sample"}, {"engine": "native"}],
)
def test_what_only_the_core_can_do_is_named(asked):
    with pytest.warns(
        RuntimeWarning, match=f"FastLoader is torch's DataLoader, for which {next(iter(asked))} must be left"
    ):
        FastLoader(DATA, **asked)


def test_wrong_values_of_own_arguments_are_refused():
    with pytest.raises(ValueError, match="engine must be"):
        FastLoader(DATA, engine="fast")


@pytest.mark.slow
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_the_public_names_need_no_core_there(system):
    code = (
        "import sys, torch, torch.utils.data\n"
        f"sys.platform = {system!r}\n"
        "for name in ('fastload._core', 'fcntl', 'resource', 'nvtx'): sys.modules[name] = None\n"
        "import fastload\n"
        "with fastload.DataLoader(range(5), 2) as loader: print([batch.tolist() for batch in loader])\n"
        "print(fastload.FastLoader is fastload.DataLoader)"
    )
    done = interpreters.run(["-c", code])
    assert done.stdout == "[[0, 1], [2, 3], [4]]\nTrue\n", done.stderr
