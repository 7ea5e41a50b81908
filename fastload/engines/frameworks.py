"""What frameworks know of a loader's epoch when they save its state."""

from __future__ import annotations

import sys
from typing import Final

_FIT_LOOPS: Final = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


def lightning_ends_epoch() -> bool:
    """Whether Lightning saves a checkpoint after the last batch of its epoch.

    It does not ask for a batch after that, so a loader would be within its epoch. But a checkpoint from there goes on
    with the next epoch. Lightning asks for states in a call of its own, which is found on the stack.
    """
    if not any(name in sys.modules for name in _FIT_LOOPS):
        return False
    frame = sys._getframe(1)
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code.co_name == "on_save_checkpoint" and frame.f_globals.get("__name__") in _FIT_LOOPS:
            progress = getattr(getattr(frame.f_locals.get("self"), "epoch_loop", None), "batch_progress", None)
            return bool(getattr(progress, "is_last_batch", False))
    return False
