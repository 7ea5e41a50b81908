"""Check many arithmetic cases in one test, which saves milliseconds per case."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any


def check_each(check: Callable[..., None], *axes: Iterable[Any]) -> None:
    """Call ``check`` with each combination of the axes' values; report those that fail.

    The first failure's error is included.
    """
    cases = list(itertools.product(*axes))
    assert cases
    failed = {}
    for number, case in enumerate(cases):
        try:
            check(*case)
        except Exception as error:
            failed[number] = error
    if failed:
        names = "".join(f"\n  {cases[number]}" for number in list(failed)[:20])
        more = f"\n  and {len(failed) - 20} more" if len(failed) > 20 else ""
        raise AssertionError(f"{len(failed)} of {len(cases)} cases failed:{names}{more}") from next(
            iter(failed.values())
        )
