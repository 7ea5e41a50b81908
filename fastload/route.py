"""Decide what makes a loader's epoch, and why.

A :class:`Route` is the only decision: loader, iterators, workers and plan read it.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import torch

from fastload.memory.limits import no_slots_because
from fastload.nvtx import stages
from fastload.options import has_state, makes_itself, resolve_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.options import LoaderConfig
    from fastload.pipeline.installed.stamp import RecipeStamp
    from fastload.pipeline.recipe import Recipe

Maker: TypeAlias = Literal["threads", "next", "workers", "python"]
"""What makes samples: decode threads; decode threads inside ``next()``, without workers; worker processes with a decode
thread each, around the user's functions; or the dataset itself, in worker processes or the main process."""


@dataclass(frozen=True, slots=True)
class Route:
    """What makes an epoch that starts now.

    Attributes:
        maker: What makes samples.
        device: Where finished batches are.
        is_plain: Whether torch's own iterator makes the batches, with no device side.
        recipe: How samples are made natively; ``None`` if the dataset makes them.
        reasons: Why the dataset makes them, or workers instead of decode threads.
        is_lazy: Whether Pillow's images are lazy in worker processes.
        for_opencv: Whether JPEG and PNG files that OpenCV reads in worker processes are decoded natively.
        is_deferred: Whether tensors that torchvision makes of them are deferred.
        no_slots: Why workers do not write into pinned slots; ``None`` if they do.
        not_on_gpu: Why decode threads, or workers of lazy images, decode every image; ``None`` if the GPU can decode
            some.
    """

    maker: Maker
    device: torch.device
    is_plain: bool
    recipe: Recipe | None = None
    reasons: tuple[str, ...] = ()
    is_lazy: bool = False
    for_opencv: bool = False
    is_deferred: bool = False
    no_slots: str | None = None
    not_on_gpu: str | None = None

    @property
    def engine(self) -> str:
        """The engine's name; see :class:`fastload.Plan`."""
        if self.maker != "python":
            return "native"
        return "torch" if self.is_plain else "workers"


class Outcomes(Protocol):
    """What a loader's earlier epochs have shown of a recipe."""

    @property
    def reads_pixels(self) -> bool:
        """Whether the user's code read deferred pixels of each batch, about."""
        ...

    def known(self, loader: LoaderConfig[Any], recipe: Recipe) -> str | None:
        """Why the recipe must not be used; ``None`` if it passed or is unchecked."""
        ...

    def not_started(self, loader: LoaderConfig[Any], recipe: Recipe) -> str | None:
        """Why decode threads could not be started; ``None`` if they could or were not."""
        ...


STAMPS_MAX: Final = 8
"""How many stamps may break or not be whole, one after the other, while the recipe is the same; then none is made."""

READ: Final = (
    *("batch_sampler", "collate_fn", "dataset", "engine", "exact", "in_order", "num_workers", "randomness"),
    "worker_init_fn",
)
"""Attributes of a loader that its recipe depends on."""

Known: TypeAlias = "tuple[Any, Recipe, Any]"
"""What identifies a recipe, the recipe, and what was made of it."""


class RecipeReader:
    """Knows a recipe, and reads it anew if it may have changed.

    Attributes:
        known: What was read last; ``None`` if there is no recipe.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Read anew next time."""
        self.known: Known | None = None
        self._stamp: RecipeStamp | None = None
        self._is_proved = False  # the stamp lay between two readings of the same recipe
        self._broken = 0  # stamps in a row

    def read(self) -> Known | None:
        """Return what is known of the recipe.

        It is read again unless a stamp says that nothing has changed.
        """
        former, stamp = self.known, self._stamp
        holds = former is not None and stamp is not None and stamp.holds()
        if holds and self._is_proved:
            return former
        known = self.read_anew()
        if known is None:
            return None
        same = former is not None and known[0] == former[0] and known[1].dataset is former[1].dataset
        self._is_proved = holds and same
        self._broken = self._broken + 1 if same and not holds else 0
        if self._is_proved:
            return known
        self._stamp = None
        if self._broken < STAMPS_MAX:
            from fastload.pipeline.installed.stamp import RecipeStamp

            stamp = RecipeStamp(known[1], whole=True, **self.looked_at())
            self._stamp = stamp if stamp.is_whole else None
        return known

    def read_anew(self) -> Known | None:
        """Read the recipe from the dataset and its transforms."""
        raise NotImplementedError

    def looked_at(self) -> dict[str, Any]:
        """Return what else :meth:`read_anew` looks at, as arguments of a :class:`RecipeStamp`."""
        return {}


class RouteReader(RecipeReader):
    """Reads the recipe of a loader's epochs. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._arguments: list[Any] = []
        self._loader: Any = None
        self._device = torch.device("cpu")
        self._reasons: tuple[str, ...] = ()

    def read_of(self, loader: LoaderConfig[Any], device: torch.device) -> tuple[Recipe | tuple[str, ...], str | None]:
        """Return what :func:`read_loader` does, and why transforms cannot be copied, if so."""
        if not self._lock.acquire(blocking=False):  # another thread reads, or this one, and a signal came
            recipe = read_loader(loader, device)
            return recipe, _not_copied_because(loader, recipe)
        try:
            arguments = [getattr(loader, name) for name in READ]
            is_same = device == self._device and len(self._arguments) == len(arguments)
            if not (is_same and all(map(_is_same, arguments, self._arguments))) or loader.worker_init_fn is not None:
                self.forget()  # the function's code counts, too
            self._loader, self._device, self._arguments = loader, device, arguments
            self.known = self.read()
            return (self._reasons, None) if self.known is None else self.known[1:]
        finally:
            self._loader = None  # which has this reader
            self._lock.release()

    def read_anew(self) -> Known | None:  # noqa: D102
        recipe = read_loader(self._loader, self._device)
        if isinstance(recipe, tuple):
            self._reasons = recipe
            return None
        return recipe.key, recipe, _not_copied_because(self._loader, recipe)

    def looked_at(self) -> dict[str, Any]:  # noqa: D102
        return {"types": [type(self._loader)]}


def _is_same(argument: Any, former: Any) -> bool:
    return argument is former or (isinstance(argument, int) and argument == former)


def _not_copied_because(loader: LoaderConfig[Any], recipe: Recipe | tuple[str, ...]) -> str | None:
    if isinstance(recipe, tuple) or recipe.in_python or not loader.num_workers:
        return None  # no decode threads
    return recipe.not_copied_because()


def decide(
    loader: LoaderConfig[Any],
    outcomes: Outcomes,
    reader: RouteReader,
    prepare_lazy_images: Callable[[], bool],
    decodes_for_opencv: Callable[[], bool],
    own: bool,
) -> Route:
    """Decide what makes an epoch of ``loader`` that starts now.

    Args:
        loader: The loader.
        outcomes: What its earlier epochs have shown.
        reader: Knows the recipe of its earlier epochs.
        prepare_lazy_images: Whether Pillow's images can be lazy here. Called if workers may need it.
        decodes_for_opencv: Whether the core can decode what OpenCV reads here. Called in the same case.
        own: Whether the loader makes its iterators itself.
    """
    device = torch.device("cpu") if own else resolve_device(loader.device)
    on_host = device.type == "cpu" and loader.dtype is None and loader.randomness == "worker" and not stages.active()
    is_plain = own or on_host
    if (running := _running(loader, device)) is not None:
        return Route("threads", device, False, running, not_on_gpu=_not_on_gpu(loader, running, device))
    read, not_copied = reader.read_of(loader, device)
    if own:
        why = f"{makes_itself(loader)}; leave torch's"
        read = (why, *read) if isinstance(read, tuple) else (why,)
    recipe, reasons = (None, read) if isinstance(read, tuple) else (read, ())
    maker: Maker = "python"
    not_on_gpu = None if recipe is None else _not_on_gpu(loader, recipe, device)
    if recipe is not None and (failed := outcomes.known(loader, recipe)) is not None:
        recipe, reasons = None, (failed,)
    if recipe is not None and not loader.num_workers:
        maker = "next"
    elif recipe is not None and recipe.in_python:
        maker = "workers"
    elif recipe is not None:
        failed = not_copied or outcomes.not_started(loader, recipe)
        if failed is None:
            return Route("threads", device, False, recipe, not_on_gpu=not_on_gpu)
        reasons = (failed,)
        around = recipe.first_call is not None and loader.randomness == "worker"  # else only torch's samples are seeded
        maker = "workers" if around else "python"
        recipe = None if maker == "python" else recipe
    changes_libraries = loader.engine != "torch" and bool(loader.num_workers) and not own
    is_lazy = changes_libraries and prepare_lazy_images()
    for_opencv = changes_libraries and decodes_for_opencv()
    is_deferred = is_lazy and loader.deferred and "torchvision" in sys.modules
    no_slots = no_slots_because(loader, device)
    lazily_not_on_gpu = _not_on_gpu(loader, None, device) if is_lazy else None
    paints = is_deferred and no_slots is None and lazily_not_on_gpu is None
    if maker == "workers" and paints and loader.engine == "auto" and not outcomes.reads_pixels:
        maker, recipe = "python", None
        reasons = (*reasons, "functions of your own run beside it, and the GPU makes pixels faster than workers do")
    if is_lazy and recipe is None:
        not_on_gpu = lazily_not_on_gpu
    if maker == "next":
        no_slots = no_slots or "the main process makes the samples"
    return Route(maker, device, is_plain, recipe, reasons, is_lazy, for_opencv, is_deferred, no_slots, not_on_gpu)


def _running(loader: LoaderConfig[Any], device: torch.device) -> Recipe | None:
    """Return the recipe of decode threads that persist and make the next epoch, too."""
    former: Any = loader._iterator
    if not loader.persistent_workers or not getattr(type(former), "runs_recipe", False) or former.is_closed:
        return None
    return former.recipe if former.device == device else None


def _not_on_gpu(loader: LoaderConfig[Any], recipe: Recipe | None, device: torch.device) -> str | None:
    from fastload.device.decode import loader_allows

    return loader_allows.not_on_gpu_because(loader, recipe, device)


def read_loader(loader: LoaderConfig[Any], device: torch.device) -> Recipe | tuple[str, ...]:
    """Read a loader's recipe, or the reasons why it has none and what to change."""
    if loader.engine == "torch":
        return ("engine='torch'",)
    reasons = []
    if not loader._auto_collation:
        reasons.append("batch_size=None: only batches are made natively")
    if not loader.in_order and loader.num_workers:
        reasons.append("in_order=False: only batches in order are made natively")
    if device.type not in ("cpu", "cuda"):
        reasons.append(f"batches go to {device.type}; natively they go to cuda and cpu")
    if has_state(loader.dataset):
        reasons.append(f"dataset {type(loader.dataset).__name__} has a state_dict(), which its samples may change")
    if "torchvision" not in sys.modules:  # then the loader uses none of its datasets or transforms
        return (
            *reasons,
            f"dataset {type(loader.dataset).__name__} has no torchvision transforms; only those are supported natively",
        )
    if importlib.util.find_spec("fastload._core") is None:
        return (*reasons, "fastload._core is not built; reinstall fastload with a C++ compiler")
    from fastload.pipeline.recipe import Refusal, read_recipe

    first_call = loader.worker_init_fn if loader.num_workers else None
    recipe = read_recipe(loader.dataset, loader.collate_fn, first_call, exact=loader.exact)
    if isinstance(recipe, Refusal):
        return (*reasons, *recipe.reasons)
    if recipe.pipeline.has_tensor_contrast:  # torch's bits depend on its number of threads
        if not loader.num_workers and torch.get_num_threads() > 1:
            reasons.append("num_workers=0: torch's threads round a tensor's contrast otherwise; use workers")
        if recipe.in_python or recipe.first_call is not None:
            code = recipe.in_python[0] if recipe.in_python else "worker_init_fn"
            reasons.append(f"{code} may set torch's threads, which round a tensor's contrast otherwise")
    if recipe.pipeline.views > 1 and loader.randomness == "sample":
        reasons.append("randomness='sample': only one view of an image is made natively; use randomness='worker'")
    if recipe.in_python and loader.randomness == "sample":
        reasons.append(f"randomness='sample' draws before each sample, and {recipe.in_python[0]} may draw too")
    return tuple(reasons) or recipe
