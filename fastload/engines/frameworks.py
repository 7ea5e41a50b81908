"""What frameworks know of a loader's epoch when they save or load its state."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import FrameType

_FIT_LOOPS: Final = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
_ACCELERATE: Final = ("accelerate.checkpointing",)


def lightning_ends_epoch() -> bool:
    """Whether Lightning saves a checkpoint after the last batch of its epoch.

    It does not ask for a batch after that, so a loader would be within its epoch. But a checkpoint from there goes on
    with the next epoch.
    """
    saving: Any = _call_of("on_save_checkpoint", _FIT_LOOPS)
    if saving is None:
        return False
    progress = getattr(getattr(saving.f_locals.get("self"), "epoch_loop", None), "batch_progress", None)
    return bool(getattr(progress, "is_last_batch", False))


def accelerate_sets_generators() -> bool:
    """Whether Accelerate's ``load_state()`` loads a state: it then sets the global generators itself.

    Its state of a loader is older than its generators by a step: it asks before the step.
    """
    return _call_of("load_accelerator_state", _ACCELERATE) is not None


def _call_of(function: str, modules: tuple[str, ...]) -> FrameType | None:
    """Return the call of a framework's function that asks, if there is one."""
    if not any(name in sys.modules for name in modules):
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_name == function and frame.f_globals.get("__name__") in modules):
        frame = frame.f_back
    return frame
