"""Run torchdata's own tests of ``StatefulDataLoader`` with FastLoader in its place.

``python scripts/torchdata_suite.py FOLDER``, where FOLDER is ``test/stateful_dataloader`` of a checkout of
pytorch/data; torchdata's packages come without tests. They also need ``parameterized`` and ``expecttest``. Exits with 1
if a test fails for which no reason is known, or if one passes that was not known to.
"""

from __future__ import annotations

import argparse
import sys
import unittest
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Final

from fastload import FastLoader

KEYS: Final = "reads keys of torchdata's own state"
ORDER: Final = "in_order=False: FastLoader gives no state, torchdata gives one without any guarantee"
LATER: Final = (
    "expects iter() to raise what worker_init_fn raised; torch's DataLoader, and FastLoader, raise it from next()"
)
KIND: Final = "expects an AssertionError from iter(); FastLoader raises a ValueError from load_state_dict()"

REASONS: Final = {
    "TestInitialState_shard0.test_initial_state": KEYS,
    "TestInitialState_shard0.test_load_state_after_initial_state_dict": KEYS,
    "TestInitialState_shard0.test_init_error": LATER,
    "TestDynamicStateIterableDataset_shard0.test": KEYS,
    "TestDatasetIteratorStateDuplication_shard0.test": KEYS,
    "TestSingleIterCalled_shard0.test_inline": KEYS,
    "TestSingleIterCalled_shard0.test_inline_iter": KEYS,
    "TestSingleIterCalled_shard0.test_mp": KEYS,
    "TestSingleIterCalled_shard0.test_mp_iter": KEYS,
    "TestNumWorkersMismatch_shard3.test_num_workers_mismatch": KIND,
    "TestOutOfOrderWithCheckpointing.test_out_of_order_index_ds": ORDER,
    "TestOutOfOrderWithCheckpointing.test_out_of_order_iterable_ds_no_completed_workers": ORDER,
    "TestOutOfOrderWithCheckpointing.test_out_of_order_iterable_ds_one_completed_worker": ORDER,
}
"""Why tests fail; all others pass."""


class Standing(FastLoader[Any]):
    """A FastLoader that takes torchdata's argument, which says how often workers send their states."""

    def __init__(self, *args: Any, snapshot_every_n_steps: int | None = 1, **options: Any) -> None:
        super().__init__(*args, device="cpu", **options)
        self.snapshot_every_n_steps = snapshot_every_n_steps


def tests_of(suite: unittest.TestSuite) -> list[Any]:
    """List the tests of a suite and of those within it."""
    return [test for part in suite for test in (tests_of(part) if isinstance(part, unittest.TestSuite) else [part])]


def main() -> int:
    """Run the tests of one file, by default of the states'."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="test/stateful_dataloader of a checkout of pytorch/data")
    parser.add_argument("--file", default="test_state_dict", help="name of one of its modules")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of the tests to run")
    args = parser.parse_args()
    import torchdata.stateful_dataloader as torchdatas

    torchdatas.StatefulDataLoader = Standing
    sys.path.insert(0, str(args.folder))
    warnings.simplefilter("ignore")
    suite = tests_of(unittest.defaultTestLoader.loadTestsFromName(args.file))
    counts, wrong = Counter[str](), []
    for test in suite:
        name = ".".join(test.id().split(".")[-2:])
        if not any(part in name for part in args.only):
            continue
        result = unittest.TestResult()
        test.run(result)
        why = result.failures + result.errors
        counts["skipped" if result.skipped else "failed" if why else "passed"] += 1
        known = REASONS.get(name)
        if bool(why) != (known is not None) and not result.skipped:
            wrong.append(name)
        text = why[0][1].partition("To execute this test")[0].strip() if why else ""
        line = text.splitlines()[-1] if text else ""
        if why and not known:
            print(text[-1500:])  # noqa: T201
        print(f"{name}: {'failed: ' + (known or line) if why else 'ok'}", flush=True)  # noqa: T201
    print(f"{dict(counts)}; not as expected: {wrong or 'none'}")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
