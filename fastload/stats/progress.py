"""A progress bar with images per second and the share of time spent waiting."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fastload._version import with_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastload.stats.stats import Stats

T = TypeVar("T")
EVERY_S: Final = 0.25  # seconds between updates of the figures: people read no faster


def progress(loader: Iterable[T], **bar: Any) -> Iterator[T]:
    """Iterate ``loader`` with a tqdm bar that shows images per second and the stall.

    The stall is the share of time since the last update for which the loop waited for batches; on a GPU that the loader
    has timed, the share for which the GPU waited. Use it as ``for batch in fastload.progress(loader):``; breaking out
    of the loop closes the bar.

    Args:
        loader: A :class:`~fastload.FastLoader`. Any other iterable gets a plain bar.
        **bar: Passed on to :class:`tqdm.auto.tqdm`, such as ``desc`` or ``disable``.

    Raises:
        ModuleNotFoundError: tqdm is not installed; the extra ``progress`` has it.
    """
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "tqdm":
            raise
        raise ModuleNotFoundError(
            f"fastload.progress needs tqdm, which is not installed; {with_extra('progress')}", name="tqdm"
        ) from error
    return _bar(loader, tqdm, bar)


def _bar(loader: Iterable[T], tqdm: Any, options: dict[str, Any]) -> Iterator[T]:
    if "total" not in options:
        try:
            options["total"] = len(loader)  # type: ignore[arg-type]
        except TypeError:
            options["total"] = None
    ask = getattr(loader, "stats", None)
    with tqdm(**{"unit": "batch", **options}) as bar:
        first = last = ask() if ask is not None else None
        due = time.monotonic() + EVERY_S
        for batch in loader:
            yield batch
            bar.update()
            if ask is not None and (now := time.monotonic()) >= due:
                due = now + EVERY_S
                stats = ask()
                bar.set_postfix_str(_words(stats.since(last)), refresh=False)
                last = stats
        if ask is not None and not bar.disable:
            bar.set_postfix_str(_words(ask().since(first)))


@contextlib.contextmanager
def terminal_bar(
    total: int | None, desc: str, unit: str = "batch"
) -> Iterator[tuple[Callable[[int], object], Callable[[str], object]]]:
    """Show tqdm's bar if stderr is a terminal.

    Yields:
        A function that advances the bar, and one that writes a line to stdout, above it.
    """
    if importlib.util.find_spec("tqdm") is None or not sys.stderr.isatty():
        yield lambda count: None, lambda line: sys.stdout.write(f"{line}\n")
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=desc, unit=unit, leave=False) as bar:
        yield bar.update, tqdm.write


def _words(stats: Stats) -> str:
    return f"{stats.images_per_s:,.0f} images/s, stall {stats.loader_stall:.0%}"
