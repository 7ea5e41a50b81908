"""What Accelerate's skip_first_batches makes of a FastLoader."""

from __future__ import annotations

import pytest
from interpreters import result_of

pytestmark = pytest.mark.slow


SKIP = """
import json, sys
import torch
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader, IterableDataset
if len(json.loads(sys.argv[1])) > 1:
    from fastload.commands.run import patch
    patch.install({"device": "cpu"})
from fastload import FastLoader

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(23))

def lists(loader):
    return [batch.tolist() for batch in loader]

accelerator = Accelerator(cpu=True)
found = {}
for name, dataset, options in [("map", range(23), {"num_workers": 2}), ("stream", Stream(), {})]:
    loader = FastLoader(dataset, 4, **options)
    prepared = FastLoader.wrap(accelerator.prepare(loader))
    for kind, source in ("plain", loader), ("prepared", prepared):
        skipped = skip_first_batches(source, 2)
        made = vars(skipped).get("base_dataloader", skipped)
        found[f"{kind} {name}"] = isinstance(made, FastLoader)
        wrapped = FastLoader.wrap(skipped)
        assert isinstance(vars(wrapped).get("base_dataloader", wrapped), FastLoader) and isinstance(wrapped, FastLoader)
        assert lists(wrapped) == lists(skipped) == lists(loader)[2:], (kind, name)
shuffled = FastLoader(range(23), 4, shuffle=True, generator=torch.Generator().manual_seed(1), num_workers=1)
skipped = FastLoader.wrap(skip_first_batches(shuffled, 3))
before = shuffled.generator.get_state()
expected = lists(shuffled)[3:]
shuffled.generator.set_state(before)
assert lists(skipped) == expected
json.dump(found, open(json.loads(sys.argv[1])[-1], "w"))
"""


@pytest.mark.parametrize("arguments", [(), ("run",)])
def test_what_accelerate_skips_is_wrapped_or_a_fastloader_under_fastload_run(tmp_path, arguments):
    found = result_of("accelerate", tmp_path, SKIP, *arguments)
    assert found == dict.fromkeys(["plain map", "prepared map", "plain stream", "prepared stream"], bool(arguments))
