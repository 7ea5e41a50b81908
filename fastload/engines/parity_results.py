"""What the parity checks of a loader came to, and the warning about one that failed."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastload.device.normalize import host_images

if TYPE_CHECKING:
    from fastload.engines.sample_process import SampleProcess
    from fastload.options import LoaderConfig
    from fastload.pipeline.reader import Recipe


_PACKAGE = str(Path(__file__).parents[1])


class FallbackWarning(UserWarning):
    """A pipeline that could have run natively does not, because a check on its own data found a difference."""


def _warn(why: str) -> None:
    """Warn, at the caller of ``iter(loader)``, and go on: also where warnings are turned into errors."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    with contextlib.suppress(FallbackWarning):
        warnings.warn(f"not run natively: {why}", FallbackWarning, stacklevel=level)


class ParityResults:
    """What the checks of a loader's recipes on its own data came to; each is made once."""

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], str | None] = {}
        self._held: list[Any] = []
        self.python_used = False
        """Samples had to be made in Python; a process for them is better forked where torch would fork its workers."""

    def note_python(self) -> None:
        """Samples have to be made in Python."""
        self.python_used = True

    def known(self, loader: LoaderConfig[Any], recipe: Recipe) -> str | None:
        """Why the recipe must not be used, as far as it has been checked."""
        return self._results.get(_key(loader, recipe))

    def has(self, loader: LoaderConfig[Any], recipe: Recipe) -> bool:
        """Whether the recipe has been checked."""
        return _key(loader, recipe) in self._results

    def passes(self, loader: LoaderConfig[Any], recipe: Recipe, process: SampleProcess) -> bool:
        """Whether the recipe may be used. Checks it when it is new; warns when it fails.

        Args:
            loader: Whose.
            recipe: The loader's, read just now.
            process: Has the recipe; started, if there is something to check.

        Raises:
            RuntimeError: It fails, and ``engine="native"``.
        """
        key = _key(loader, recipe)
        if key not in self._results:
            from fastload.engines.parity_check import check_recipe

            images_of = host_images(recipe, torch.contiguous_format)
            require = loader.engine == "native"
            why = check_recipe(recipe, process, images_of, any_share=require, timeout_s=loader.timeout or None)
            self._results[key] = why
            self._held.append(loader.dataset)  # its id stands in the key
            if why is not None and loader.engine != "native":
                _warn(why)
        why = self._results[key]
        if why is not None and loader.engine == "native":
            raise RuntimeError(f"engine='native', but {why}")
        return why is None


def _key(loader: LoaderConfig[Any], recipe: Recipe) -> tuple[Any, ...]:
    """All that the outcome of the check depends on, the files apart."""
    pipeline = recipe.pipeline
    values = pipeline.table
    table = None if values is None else (values.dtype, values.view(torch.uint8).numpy().tobytes())
    require = loader.engine == "native"
    color = None if pipeline.erasing is None else pipeline.erasing.color.tolist()
    made = repr((pipeline.ops, color, pipeline.image, torch.get_default_dtype()))
    return id(loader.dataset), made, table, repr(sorted(recipe.options.items())), require
