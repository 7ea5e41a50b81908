"""What frameworks know of a loader's epoch when they save or load its state.

They do not say it, so their calls are looked for among the callers. A version that has no such functions is a warning.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import CodeType, FrameType, ModuleType

_FIT_LOOPS: Final = {
    "lightning.pytorch": "lightning.pytorch.loops.fit_loop",
    "pytorch_lightning": "pytorch_lightning.loops.fit_loop",
}
_ACCELERATE: Final = {"accelerate": "accelerate.checkpointing"}


def lightning_ends_epoch() -> bool:
    """Whether Lightning saves a checkpoint after the last batch of its epoch.

    It does not ask for a batch after that, so a loader would be within its epoch. But a checkpoint from there goes on
    with the next epoch.
    """
    saving = _call_of("on_save_checkpoint", _FIT_LOOPS)
    if saving is None:
        return False
    try:
        return bool(saving.f_locals["self"].epoch_loop.batch_progress.is_last_batch)
    except (AttributeError, KeyError) as error:
        _warn(f"the loop of this version of Lightning is another ({type(error).__name__}: {error})")
        return False


def accelerate_sets_generators() -> bool:
    """Whether Accelerate's ``load_state()`` loads a state: it then sets the global generators itself.

    Its state of a loader is older than its generators by a step: it asks before the step.
    """
    return _call_of("load_accelerator_state", _ACCELERATE) is not None


def _call_of(function: str, modules: dict[str, str]) -> FrameType | None:
    """Return the call of a framework's function that asks, if there is one.

    Args:
        function: Its name.
        modules: The module that has it, for each package; of packages that are not imported nothing is looked for.
    """
    codes: set[CodeType] = set()
    for package, module in modules.items():
        if package in sys.modules:
            found = _codes_of(function, sys.modules.get(module))
            codes |= found
            if not found:
                _warn(f"this version of {package} has no {function} in {module}")
    frame: FrameType | None = sys._getframe(1) if codes else None
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame


@functools.lru_cache
def _codes_of(function: str, module: ModuleType | None) -> frozenset[CodeType]:
    """Return the code of a module's functions of this name, with those of its classes."""
    named: dict[str, Any] = {} if module is None else vars(module)
    kinds = [kind for kind in named.values() if isinstance(kind, type) and kind.__module__ == named["__name__"]]
    found = [inspect.unwrap(owner[function]) for owner in (named, *map(vars, kinds)) if function in owner]
    return frozenset(one.__code__ for one in found if hasattr(one, "__code__"))


def _warn(what: str) -> None:
    warnings.warn(
        f"{what}, which fastload looks for when states are saved and loaded; check that your run goes on with the same "
        "batches from a checkpoint of an epoch's end, and report the version",
        stacklevel=2,
    )
