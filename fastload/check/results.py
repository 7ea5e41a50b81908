"""Results of a loader's parity checks, and the warning about a failed one."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastload.device.normalize import host_images

if TYPE_CHECKING:
    from fastload.check.parity_check import SampleMaker
    from fastload.options import LoaderConfig
    from fastload.pipeline.recipe import Recipe


_PACKAGE = str(Path(__file__).parents[1])


class FallbackWarning(UserWarning):
    """Torch makes the batches of a supported pipeline, or one of them."""


def level_outside() -> int:
    """Return the ``stacklevel`` by which a function warns at its nearest caller outside of fastload."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level


def warn_fallback(why: str) -> None:
    """Warn at the caller of ``iter(loader)`` or ``next()``; go on even if warnings are errors."""
    with contextlib.suppress(FallbackWarning):
        warnings.warn(f"not run natively: {why}", FallbackWarning, stacklevel=level_outside())


class ParityResults:
    """Results of the parity checks of a loader's recipes; each check runs once."""

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], str | None] = {}
        self._held: list[Any] = []
        self._not_started: tuple[tuple[Any, ...], str, Any] | None = None  # of the last start, with what its ids are of
        self._told: set[str] = set()
        self.python_used = False
        """Whether samples were made in Python; their process is better forked where torch would fork its workers."""
        self.reads_pixels = False
        """Whether the user's code read deferred pixels of each batch, about. Then workers make the next epoch's."""

    def note_python(self) -> None:
        """Note that samples are made in Python."""
        self.python_used = True

    def known(self, loader: LoaderConfig[Any], recipe: Recipe) -> str | None:
        """Why the recipe must not be used; ``None`` if it passed or is unchecked."""
        return self._results.get(key_of(loader, recipe))

    def not_started(self, loader: LoaderConfig[Any], recipe: Recipe) -> str | None:
        """Why the last start of the recipe's decode threads failed; ``None`` if it did not."""
        key, why, _ = self._not_started or (None, None, None)
        return why if key == (*key_of(loader, recipe), id(recipe.first_call)) else None

    def start_failed(self, loader: LoaderConfig[Any], recipe: Recipe, why: str) -> None:
        """Note that decode threads cannot be started; warn the first time."""
        key = *key_of(loader, recipe), id(recipe.first_call)
        self._not_started = key, why, (loader.dataset, recipe.first_call)
        if why not in self._told:
            self._told.add(why)
            warn_fallback(why)

    def forget_start(self) -> None:
        """Let decode threads be started again."""
        self._not_started = None

    def has(self, loader: LoaderConfig[Any], recipe: Recipe) -> bool:
        """Whether the recipe has been checked."""
        return key_of(loader, recipe) in self._results

    def passes(self, loader: LoaderConfig[Any], recipe: Recipe, process: SampleMaker) -> bool:
        """Return whether the recipe may be used. Checks a new one; warns if it differs.

        Args:
            loader: The loader.
            recipe: Its current recipe.
            process: Has the same recipe; started, if a check is needed.

        Raises:
            RuntimeError: The recipe fails and ``engine="native"``.
        """
        key = key_of(loader, recipe)
        if key not in self._results:
            from fastload.check.parity_check import FewSupported, check_recipe

            images_of = host_images(recipe, torch.contiguous_format)
            require = loader.engine == "native"
            why = check_recipe(recipe, process, images_of, any_share=require, timeout_s=loader.timeout or None)
            self._results[key] = why
            self._held.append(loader.dataset)  # keeps alive the object whose id is in the key
            if why is not None and loader.engine != "native" and not isinstance(why, FewSupported):
                warn_fallback(why)
        why = self._results[key]
        if why is not None and loader.engine == "native":
            raise RuntimeError(f"engine='native', but {why}")
        return why is None


def key_of(loader: LoaderConfig[Any], recipe: Recipe) -> tuple[Any, ...]:
    """Everything that a recipe's batches depend on, and its check's outcome, except the files."""
    return id(loader.dataset), *recipe.key, loader.engine == "native"
