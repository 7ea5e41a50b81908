"""Compare timm's transforms with the core's ops at run time.

timm's functions draw from the global generators, which other threads may use. Copies of them run here on generators of
their own.
"""

from __future__ import annotations

import copy
import itertools
import random
import sys
import threading
from functools import cache, partial
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from fastload import _core
from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.decodes import calibrate
from fastload.pipeline.installed.patches import Functions, imported
from fastload.pipeline.installed.python_stream import numpy_bytes, python_bytes
from fastload.pipeline.installed.steps import probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastload.pipeline.nodes import Node

_ERASING: Final = "timm.data.random_erasing"
MODULES: Final = ("timm.data.transforms", "timm.data.auto_augment", _ERASING)
_SEEDS: Final = range(6)
_NOTHING: Final[Node] = ("pad", {"margins": (0, 0, 0, 0)})
_lock: Final = threading.Lock()
_functions: Final = {name: Functions() for name in MODULES}
_learnt: Final[set[str]] = set()


def check_modules() -> None:
    """Refuse if a function of timm's was patched. Thread-safe.

    Raises:
        Refused: Names it.
    """
    with _lock:
        for name, functions in _functions.items():
            if name not in _learnt and (module := imported(name)) is not None:
                functions.add(module)
                _learnt.add(name)
            if (reason := functions.patched()) is not None:
                raise Refused(reason)


def check_same(step: Any, nodes: list[Node], sizes: Iterable[tuple[int, int]] = ((61, 47),)) -> None:
    """Refuse if timm's transform draws or does something else than its nodes.

    Args:
        step: The transform.
        nodes: What it was read into.
        sizes: Heights and widths of images to try.

    Raises:
        Refused: It does.
    """
    key = type(step), repr(vars(step)), repr(nodes), _constants(), tuple(sizes)
    if key not in _same:
        _same[key] = all(_is_same(step, nodes, size, seed) for size in key[-1] for seed in _SEEDS)
    if not _same[key]:
        raise Refused(_DIFFERS.format(name_of(step)))


def check_same_erasing(
    step: Any, node: Node, patches_of: Callable[[list[tuple[list[Any], bytes | None]]], list[list[Any]]]
) -> None:
    """Refuse if timm's RandomErasing draws or does something else than its node.

    Args:
        step: The transform.
        node: What it was read into.
        patches_of: Makes samples' patches from what the core draws.

    Raises:
        Refused: It does.
    """
    key = type(step), repr(vars(step)), repr(node), _constants()
    if key not in _same:
        certain, nowhere = copy.copy(step), copy.copy(step)
        certain.probability = nowhere.probability = 1.0
        nowhere.min_area = nowhere.max_area = 4.0
        fields = {**node[1], "p": 1.0}
        pairs = (step, node), (certain, (node[0], fields)), (nowhere, (node[0], {**fields, "scale": (4.0, 4.0)}))
        tries = itertools.product(pairs, ((61, 47), (9, 8)), _SEEDS)
        _same[key] = all(_erases_alike(pair, patches_of, size, seed) for pair, size, seed in tries)
    if not _same[key]:
        raise Refused(_DIFFERS.format(name_of(step)))


def _erases_alike(pair: tuple[Any, Node], patches_of: Any, size: tuple[int, int], seed: int) -> bool:
    step, (kind, fields) = pair
    copies, core, plan = _Copies(seed), _core.Generator(seed), _core.DrawPlan()
    plan.add(kind, **fields)
    image = torch.arange(3.0 * size[0] * size[1], dtype=torch.float32).view(3, *size)
    try:
        wanted = copies.of(step)(image.clone())
    except Exception:  # noqa: BLE001 - whatever it is, the native core would not raise it
        return False
    core.seed_others(seed)
    for (top, left, height, width), values in patches_of([plan.draw_erased(core, size[1], size[0])])[0]:
        image[:, top : top + height, left : left + width] = values
    return torch.equal(image, wanted) and core.get_state() == copies.states()


_DIFFERS: Final = "{} is something else in the installed timm than the native core knows"
_same: Final[dict[tuple[Any, ...], bool]] = {}


def is_own(function: Any) -> bool:
    """Whether a function is one of timm's, or timm's with some arguments given."""
    if isinstance(function, partial):
        return is_own(function.func)
    if not isinstance(function, FunctionType) or function.__module__ not in MODULES:
        return False
    return vars(sys.modules[function.__module__]).get(function.__name__) is function


def _constants() -> str:
    """The numbers and tuples among the modules' globals."""
    spaces = [vars(module) for name in MODULES if (module := imported(name)) is not None]
    return repr([value for space in spaces for value in space.values() if isinstance(value, int | float | tuple)])


def _is_same(step: Any, nodes: list[Node], size: tuple[int, int], seed: int) -> bool:
    image, copies = _sized(size), _Copies(seed)
    try:
        wanted = np.asarray(copies.of(step)(image))
    except Exception:  # noqa: BLE001 - whatever it is, it is raised in Python
        wanted = None
    got = np.empty((1, 1, 3), np.uint8) if wanted is None else np.empty_like(wanted)
    core = _core.Generator(seed)
    core.seed_others(seed)
    rule = calibrate().pass_rule or "horizontal_first"
    if not _core.apply_steps([_NOTHING, *nodes], np.array(image), got, rule, core):
        return True  # such a sample is made in Python
    return wanted is not None and np.array_equal(got, wanted) and core.get_state() == copies.states()


@cache
def _sized(size: tuple[int, int]) -> Any:
    return probe() if size == (61, 47) else probe().resize(size[::-1])


class _Copies:
    """Copies of timm's functions and objects that draw from generators of their own."""

    def __init__(self, seed: int) -> None:
        self.python, self.legacy = random.Random(seed), np.random.RandomState(seed)
        self._torch = torch.Generator().manual_seed(seed)
        self._spaces: dict[str, dict[str, Any]] = {}

    def states(self) -> bytes:
        """The generators' states, as the core holds them."""
        of_torch = self._torch.get_state().numpy().tobytes()
        return of_torch + python_bytes(self.python.getstate()) + numpy_bytes(self.legacy.get_state())

    def of(self, thing: Any) -> Any:
        """Copy a function, or an object and those it holds, and return what to call."""
        if isinstance(thing, list | tuple):
            return type(thing)(self.of(part) for part in thing)
        if isinstance(thing, partial):
            return partial(self.of(thing.func), *thing.args, **thing.keywords)
        if isinstance(thing, FunctionType):
            return self._rebound(thing)
        kind = type(thing)
        if kind.__module__ not in MODULES:
            return thing
        methods = {name: self._rebound(value) for name, value in vars(kind).items()}
        used = {name: methods[name] for name in ("__call__", "_erase", "forward", "get_params") if name in methods}
        copy = type(kind.__name__, (), used)()
        vars(copy).update({name: self.of(value) for name, value in vars(thing).items()})
        return copy if "__call__" in used else copy.forward

    def _rebound(self, value: Any) -> Any:
        if isinstance(value, staticmethod):
            return staticmethod(self._rebound(value.__func__))
        if not isinstance(value, FunctionType) or value.__module__ not in MODULES:
            return value
        space = self._space(value.__module__)
        copy = FunctionType(value.__code__, space, value.__name__, value.__defaults__, value.__closure__)
        copy.__kwdefaults__ = value.__kwdefaults__
        return copy

    def _empty(self, *args: Any, **how: Any) -> Any:
        """Stand for torch.empty(), to be filled by normal_()."""
        made = torch.empty(*args, **how)
        return SimpleNamespace(normal_=lambda: made.normal_(generator=self._torch))

    def _space(self, module: str) -> dict[str, Any]:
        """The globals of a module, with copies of its functions."""
        if module not in self._spaces:
            space = self._spaces[module] = dict(vars(sys.modules[module]))
            space |= {"random": self.python, "np": SimpleNamespace(random=self.legacy)}
            if module == _ERASING:
                space["torch"] = SimpleNamespace(empty=self._empty, zeros=torch.zeros)
            for name, value in list(space.items()):
                space[name] = self._rebound(value)
        return self._spaces[module]
