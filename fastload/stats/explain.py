"""The exit report of ``fastload run --explain``: modules that use FastLoader, and every loader's plan."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from dataclasses import dataclass, field
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHOWN_MAX: Final = 16  # number of distinct loaders (by place and plan) to print; the rest is counted
LINES_MAX: Final = 60  # number of lines to print of one plan


@dataclass
class _Entry:
    """One loader, or several with the same places and plan."""

    made: str
    looped: str
    plan: str
    loaders: int = 1
    epochs: int = 0
    loader: weakref.ref[Any] | None = field(default=None, repr=False)


class LoaderLog:
    """Records where each loader is made and iterated, and reports at exit.

    A forked child starts with an empty log. Loaders are held weakly and their plans as text. A loader that was never
    iterated is not reported: naming its device could start the driver, which breaks a later fork. ``users_of`` returns,
    at exit, the modules that hold the patched ``DataLoader``.
    """

    def __init__(self, users_of: Callable[[], Sequence[str]]) -> None:
        self._users_of = users_of
        self._made: dict[int, tuple[weakref.ref[Any], str]] = {}  # by id: a loader need not be hashable
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, tuple[weakref.ref[Any], _Entry]] = {}  # by id, too
        self._entries: list[_Entry] = []
        self._left_out = 0
        self._finalizer: Finalize | None = None

    def note_made(self, loader: Any, frame: Any) -> None:
        """Record that ``loader`` was made in ``frame``."""
        key = id(loader)
        self._made[key] = weakref.ref(loader, lambda _: self._made.pop(key, None)), _place(frame)

    def listening(self, iterate: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what begins a loader's iterations so that it records the loader."""

        @functools.wraps(iterate)
        def iterate_and_note(loader: Any, *given: Any) -> Any:
            iterator = iterate(loader, *given)
            self.note(loader, _place(sys._getframe(1)))
            return iterator

        return iterate_and_note

    def note(self, loader: Any, looped: str) -> None:
        """Record ``loader``, iterated at ``looped``, and its plan."""
        plan = str(loader.plan)
        with self._lock:
            if self._finalizer is None:
                # Unlike atexit, this also runs in a multiprocessing child that registered it.
                self._finalizer = Finalize(None, self._report, exitpriority=0)
            known, entry = self._known.get(id(loader), (None, None))
            if known is None or known() is not loader:
                entry = self._entry_for(loader, looped, plan)
            if entry is None:
                self._left_out += 1
                return
            entry.epochs += 1
            entry.plan = plan

    def _entry_for(self, loader: Any, looped: str, plan: str) -> _Entry | None:
        maker, made = self._made.get(id(loader), (None, ""))
        if maker is None or maker() is not loader:
            made = "a loader made elsewhere"
        for entry in self._entries:
            if (entry.made, entry.looped) == (made, looped) and entry.plan.splitlines()[:1] == plan.splitlines()[:1]:
                entry.loaders += 1
                break
        else:
            if len(self._entries) >= SHOWN_MAX:
                return None
            entry = _Entry(made, looped, plan)
            self._entries.append(entry)
        entry.loader = weakref.ref(loader)
        self._known[id(loader)] = (entry.loader, entry)
        return entry

    def _report(self) -> None:
        sys.stderr.write(self.text())
        sys.stderr.flush()

    def text(self) -> str:
        """The report; one block per process, so that ranks do not interleave."""
        rank = os.environ.get("RANK")
        who = f"process {os.getpid()}" + (f", rank {rank}" if rank is not None else "")
        lines = [f"fastload run ({who}): DataLoader was FastLoader in {', '.join(self._users_of())}"]
        with self._lock:
            for entry in self._entries:
                loader = entry.loader() if entry.loader is not None else None
                plan = str(loader.plan) if loader is not None else entry.plan  # the current plan has more detail
                many = f"{entry.loaders} loaders, " if entry.loaders > 1 else ""
                often = f"{many}iterated {entry.epochs} time{'s' if entry.epochs > 1 else ''}"
                script = entry.made.partition(", ")[0]  # which may do both in one line
                lines.append(f"  {entry.made} ({often}, {entry.looped.removeprefix(f'{script}, ')})")
                body = plan.splitlines()
                lines += [f"    {line}" for line in body[:LINES_MAX]]
                if len(body) > LINES_MAX:
                    lines.append(f"    ... and {len(body) - LINES_MAX} more lines")
            if self._left_out:
                lines.append(f"  ... and {self._left_out} more iterations of loaders elsewhere")
        return "\n".join(lines) + "\n"


def _place(frame: Any) -> str:
    """The source line in the script, and in the library that acts for it."""
    inner = outer = None
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("fastload.", "torch.")):
            here = f"{frame.f_code.co_filename.rpartition('/site-packages/')[2]}:{frame.f_lineno}"
            inner = inner or here
            if name in ("__main__", "__mp_main__"):
                outer = here
                break
        frame = frame.f_back
    if inner is None:
        return "inside torch"
    return inner if outer in (None, inner) else f"{outer}, by way of {inner}"
