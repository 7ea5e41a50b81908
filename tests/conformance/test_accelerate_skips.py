"""What Accelerate's skip_first_batches makes of a FastLoader."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import interpreters
import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]


def run(package, tmp_path, program, *arguments):
    """Run a program, and return the JSON that it writes to its last argument."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    out = tmp_path / "out.json"
    script = tmp_path / "program.py"
    script.write_text(program)
    env = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    done = interpreters.run([script, json.dumps([*arguments, str(out)])], env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


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
    found = run("accelerate", tmp_path, SKIP, *arguments)
    assert found == dict.fromkeys(["plain map", "prepared map", "plain stream", "prepared stream"], bool(arguments))
