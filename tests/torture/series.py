"""Run trials one after another in a separate program, supervised by the harness."""

from __future__ import annotations

import gc
import importlib
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from .outcome import Outcome, Setting, tell
from .programs import Launcher


def run(family: str, numbers: list[int], scratch: str, seed: int, share: float, minutes: float) -> None:
    """Run trials. Runs as a program."""
    warnings.simplefilter("ignore")
    module = importlib.import_module(f"torture.{family}")
    for number in numbers:
        tell(at=number)
        try:
            outcome = module.trial(number, Setting(Path(scratch), seed, share, minutes))
        except Exception:
            outcome = Outcome(done=module.EACH, failures=[traceback.format_exc()[-3000:]])
        tell(number=number, **outcome.record())
    gc.collect()


def supervise(
    module: ModuleType,
    numbers: Iterable[int],
    setting: Setting,
    launcher: Launcher,
    report: Callable[[int, Outcome], None],
) -> None:
    """Run trials in programs, restarting after each that hangs or dies; report their outcomes."""
    left = list(numbers)
    family = module.__name__.rpartition(".")[2]
    while left:
        some = left.copy()
        shared = str(setting.scratch), setting.seed, setting.share, setting.minutes
        program = launcher.start("torture.series:run", family, some, *shared)
        at = some[0]
        while some:
            news = program.next(module.LIMIT_S + 60 * setting.minutes * getattr(module, "LASTS", False))
            if news is not None and "at" in news:
                at = news["at"]
            elif news is not None and "number" in news:
                report(news.pop("number"), Outcome.of(news))
                some.remove(at)
                left.remove(at)
            elif news is None or "ended" in news:
                ended = program.finish(0.0)
                what = f"still busy after {module.LIMIT_S:g} s" if news is None else f"ended with code {ended.code}"
                report(at, Outcome(done=module.EACH, failures=[f"{what}\n{ended.output[-6000:]}"]))
                left.remove(at)
                break
        else:
            ended = program.finish(module.LIMIT_S)
            what = [] if ended.code == 0 else [f"after the last trial: code {ended.code}\n{ended.output[-3000:]}"]
            what += [f"after the last trial: left {thing}" for thing in ended.left]
            if what:
                report(at, Outcome(done=0, failures=what))
