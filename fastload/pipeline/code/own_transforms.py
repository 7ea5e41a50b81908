"""Read transforms of the user's own, such as Pillow's blur with chance ``p``.

A class is read natively if its code does only what the native core knows. It is read from its source, of which the
same code must result. Nothing of it runs but a copy, on generators and an image of our own, to compare.
"""

from __future__ import annotations

import ast
import inspect
import random
import weakref
from dataclasses import dataclass, field
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from PIL import ImageFilter, ImageOps

from fastload import _core
from fastload.pipeline.code.wrappers import flags_of, held_by, method_of, parts_of
from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.python_stream import numpy_bytes, python_bytes
from fastload.pipeline.installed.steps import probe
from fastload.pipeline.nodes import Place, solarize_threshold

if TYPE_CHECKING:
    from fastload.pipeline.nodes import Node

_IMAGE_FUNCTIONS: Final[dict[Any, str]] = {
    ImageOps.invert: "invert",
    ImageOps.equalize: "equalize",
    ImageOps.autocontrast: "autocontrast",
    ImageOps.solarize: "solarize",
}
_COMPARED: Final = {ast.Lt: "less", ast.LtE: "less_or_equal", ast.Gt: "less_or_equal", ast.GtE: "less"}
_MIRRORED: Final = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_SEEDS: Final = range(8)
_RESOLVED: Final = (ModuleType, FunctionType, BuiltinMethodType, MethodType, type)
_COPYING: Final = ("__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__new__")
_INNER: Final[list[Node]] = [("invert", {})]  # stands for a transform within, in comparisons

_trees: Final[weakref.WeakKeyDictionary[FunctionType, tuple[CodeType, ast.FunctionDef | None]]] = (
    weakref.WeakKeyDictionary()
)
_known: Final[weakref.WeakKeyDictionary[FunctionType, bool]] = weakref.WeakKeyDictionary()
_same: Final[dict[tuple[Any, ...], bool]] = {}


def is_read(transform: Any) -> bool:
    """Whether a transform's class is of the user's own, and of such code."""
    method = method_of(transform)
    if method is None or parts_of(transform) is not None or _copies_itself(type(transform)):
        return False
    if method not in _known:
        try:
            _Reading(transform, method, None).nodes()
            _known[method] = True
        except (Refused, LookupError):
            _known[method] = False
    return _known[method]


def _copies_itself(kind: type) -> bool:
    """Whether copies, which the engine makes for each epoch, run the user's code."""
    bases = [base for base in kind.__mro__[:-1] if base is not torch.nn.Module]
    return any(name in vars(base) for base in bases for name in _COPYING)


def own_transform(step: Any, place: Place) -> list[Node]:
    """Read a transform of the user's own.

    Raises:
        Refused: It does what the native core does not know, or does it otherwise.
    """
    method = method_of(step)
    if method is None:
        raise Refused(f"{name_of(step)} is not called as its class says")
    before = place.size
    nodes = _Reading(step, method, place).nodes()
    if place.size != before:
        raise Refused(f"{name_of(step)} changes the size of some images; put what resizes or crops outside of it")
    shown = _Reading(step, method, None)
    key = method.__code__, repr(shown.nodes())
    if key not in _same:
        _same[key] = all(_is_same(step, method, shown, seed) for seed in _SEEDS)
    if not _same[key]:
        raise Refused(f"{name_of(step)} does something else than the native core understands of it")
    return nodes


@dataclass(frozen=True, slots=True)
class _Chance:
    """A draw of ``random.random()`` that is compared with ``p``."""

    p: float
    comparison: str
    negated: bool


@dataclass(frozen=True, slots=True)
class _Radius:
    """A radius that was drawn by ``random.uniform``."""

    low: float
    high: float


@dataclass
class _Reading:
    """Follows a method's code, path by path.

    Attributes:
        transform: The user's.
        method: What runs when it is called.
        place: Where it stands; ``None`` reads transforms within as :data:`_INNER`.
        made: The nodes so far.
        drawn: A number that was drawn and is not yet used.
        variables: What local variables hold: an image is the number of nodes that made it.
        held: Attributes that were read.
    """

    transform: Any
    method: FunctionType
    place: Place | None
    made: list[Node] = field(default_factory=list)
    drawn: Any = None
    variables: dict[str, Any] = field(default_factory=dict)
    held: dict[str, Any] = field(default_factory=dict)
    _self: str = ""

    def nodes(self) -> list[Node]:
        """Read the whole method."""
        tree = _tree_of(self.method)
        if tree is None:
            raise self._unknown()
        self._self, image = (argument.arg for argument in tree.args.args)
        self.variables = {image: 0}
        self._block(tree.body)
        return self.made

    def _unknown(self) -> Refused:
        return Refused(f"{name_of(self.transform)} does what the native core does not know")

    def _block(self, statements: list[ast.stmt]) -> None:
        """Follow statements up to a ``return`` on every path."""
        for position, statement in enumerate(statements):
            rest = statements[position + 1 :]
            match statement:
                case ast.Expr(ast.Constant(str())) | ast.Pass():
                    continue
                case ast.Assign([ast.Name(name)], value) if name != self._self:
                    self.variables[name] = self._value(value)
                    continue
                case ast.If(test, body, otherwise):
                    return self._branch(test, [*body, *rest], [*otherwise, *rest])
                case ast.Return(ast.IfExp(test, body, otherwise)):
                    return self._branch(test, [ast.Return(body)], [ast.Return(otherwise)])
                case ast.Return(ast.expr() as value):
                    if self._value(value) != len(self.made) or self.drawn is not None:
                        raise self._unknown()
                    return None
                case _:
                    raise self._unknown()
        raise self._unknown()

    def _branch(self, test: ast.expr, yes: list[ast.stmt], no: list[ast.stmt]) -> None:
        chance = self._chance(test)
        before, variables = len(self.made), self.variables
        branches: list[list[Node]] = []
        for block in (no, yes) if chance.negated else (yes, no):
            self.variables = dict(variables)
            self._block(block)
            branches.append(self.made[before:])
            del self.made[before:]
        fields = {"p": chance.p, "comparison": chance.comparison, "branches": branches}
        self.made.append(("python_chance", fields))

    def _chance(self, test: ast.expr) -> _Chance:
        match test:
            case ast.UnaryOp(ast.Not(), inner):
                chance = self._chance(inner)
                return _Chance(chance.p, chance.comparison, not chance.negated)
        used: _Chance = self._used(self._value(test), _Chance)
        return used

    def _used(self, value: Any, kind: type[Any]) -> Any:
        if type(value) is not kind or value is not self.drawn:
            raise self._unknown()
        self.drawn = None
        return value

    def _draw(self, value: Any) -> Any:
        if self.drawn is not None:
            raise self._unknown()
        self.drawn = value
        return value

    def _value(self, expression: ast.expr) -> Any:
        """What an expression gives: an image (as in `variables`), a draw, or a number."""
        match expression:
            case ast.Name(name) if name in self.variables:
                return self.variables[name]
            case ast.Compare(left, [operator], [right]) if type(operator) in _COMPARED:
                kind = type(operator)
                if not self._is_call(left, random.random):
                    left, right, kind = right, left, _MIRRORED[kind]
                if not self._is_call(left, random.random):
                    raise self._unknown()
                p = self._number(right)
                return self._draw(_Chance(p, _COMPARED[kind], kind in (ast.Gt, ast.GtE)))
            case ast.BinOp(ast.BinOp(draw, ast.Mult(), slope), ast.Add(), low) if self._is_call(draw, random.random):
                bottom, width = self._number(low), self._number(slope)
                if (bottom + width) - bottom != width:
                    raise self._unknown()
                return self._draw(_Radius(bottom, bottom + width))
            case ast.Call(function, arguments, keywords) if self._resolved(function) is random.uniform and not keywords:
                return self._draw(_Radius(*self._pair(arguments)))
            case ast.Call(ast.Attribute(image, "filter"), [blur], []) if not self._is_own(image):
                self._image(image)
                return self._blurred(blur)
            case ast.Call(ast.Attribute(image, "convert"), [ast.Constant("RGB")], []) if not self._is_own(image):
                return self._image(image)
            case ast.Call(ast.Attribute(ast.Name(name), attribute), [image], []) if name == self._self:
                self._image(image)
                return self._within(attribute)
            case ast.Call(function, [image, *rest], []) if self._resolved(function) in _IMAGE_FUNCTIONS:
                self._image(image)
                return self._apply(_IMAGE_FUNCTIONS[self._resolved(function)], rest)
        raise self._unknown()

    def _is_own(self, expression: ast.expr) -> bool:
        return isinstance(expression, ast.Name) and expression.id == self._self

    def _image(self, expression: ast.expr) -> int:
        """Check that it is the newest image."""
        value = self._value(expression)
        if type(value) is not int or value != len(self.made):
            raise self._unknown()
        return value

    def _added(self, *nodes: Node) -> int:
        if self.drawn is not None:  # the nodes may draw, and it came before
            raise self._unknown()
        self.made += nodes
        return len(self.made)

    def _apply(self, kind: str, rest: list[ast.expr]) -> int:
        if kind == "solarize":
            if len(rest) > 1:
                raise self._unknown()
            return self._added((kind, {"value": solarize_threshold(self._number(rest[0]) if rest else 128)}))
        if rest:
            raise self._unknown()
        return self._added((kind, {}))

    def _blurred(self, blur: ast.expr) -> int:
        match blur:
            case ast.Call(function, [radius], []) | ast.Call(function, [], [ast.keyword("radius", radius)]):
                if self._resolved(function) is not ImageFilter.GaussianBlur:
                    raise self._unknown()
                drawn = self._used(self._value(radius), _Radius)
                return self._added(("python_blur", {"scale": (drawn.low, drawn.high)}))
        raise self._unknown()

    def _within(self, attribute: str) -> int:
        inner = held_by(self.transform, attribute)
        self.held[attribute] = ImageOps.invert
        return self._added(*(_INNER if self.place is None else self.place.read([inner], self.place)))

    def _pair(self, arguments: list[ast.expr]) -> tuple[float, float]:
        match arguments:
            case [ast.Starred(ast.Attribute(ast.Name(name), attribute))] if name == self._self:
                low, high = self._numbers(attribute)
                return low, high
            case [low, high]:
                return self._number(low), self._number(high)
        raise self._unknown()

    def _numbers(self, attribute: str) -> list[float]:
        values = self.held[attribute] = held_by(self.transform, attribute)
        if type(values) not in (list, tuple) or len(values) != 2:
            raise self._unknown()
        return [self._checked(value) for value in values]

    def _number(self, expression: ast.expr) -> float:
        match expression:
            case ast.Constant(value):
                return self._checked(value)
            case ast.Attribute(ast.Name(name), attribute) if name == self._self:
                value = self.held[attribute] = held_by(self.transform, attribute)
                return self._checked(value)
            case ast.Subscript(ast.Attribute(ast.Name(name), attribute), ast.Constant(0 | 1 as at)) if (
                name == self._self
            ):
                return self._numbers(attribute)[1 if at else 0]
        raise self._unknown()

    def _checked(self, value: Any) -> float:
        if type(value) not in (int, float) or not abs(value) < 1e6:
            raise self._unknown()
        return float(value)

    def _is_call(self, expression: ast.expr, function: Any) -> bool:
        match expression:
            case ast.Call(called, [], []):
                return bool(self._resolved(called) == function)
        return False

    def _resolved(self, expression: ast.expr) -> Any:
        """Look up a global name or a module's attribute; return ``None`` for all else."""
        match expression:
            case ast.Name(name) if name not in self.method.__code__.co_varnames:  # also those that are not yet set
                found = self.method.__globals__.get(name)
            case ast.Attribute(inner, name):
                module = self._resolved(inner)
                found = vars(module).get(name) if type(module) is ModuleType else None
            case _:
                return None
        return found if isinstance(found, _RESOLVED) else None


def _tree_of(method: FunctionType) -> ast.FunctionDef | None:
    """The method's source, if its code, which may have been replaced since, results from it."""
    code, tree = _trees.get(method, (None, None))
    if code is not method.__code__:
        code, tree = _trees[method] = method.__code__, _parsed(method)
    return tree


def _parsed(method: FunctionType) -> ast.FunctionDef | None:
    # An imported name's attributes are called by other instructions than a variable's.
    imported = [name for name in method.__code__.co_names if type(method.__globals__.get(name)) is ModuleType]
    imports = f"import {', '.join(imported)}" if imported else ""
    try:
        source = inspect.getsource(method)
        for begin in {imports: None, "": None}:
            tree = ast.parse(f"{begin}\nif True:\n{source}")
            module = compile(tree, "<own transform>", "exec", dont_inherit=True)
            codes = [constant for constant in module.co_consts if isinstance(constant, CodeType)]
            match tree.body[-1]:
                case ast.If(_, [ast.FunctionDef(decorator_list=[]) as function]):
                    alike = len(codes) == 1 and _traits(codes[0]) == _traits(method.__code__)
                    if alike and len(function.args.args) == 2:
                        return function
    except (OSError, SyntaxError, TypeError, ValueError):  # no source, or an indentation of its own
        pass
    return None


def _traits(code: CodeType) -> tuple[Any, ...]:
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags_of(code)
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, repr(code.co_consts), code.co_exceptiontable, *counts, *names


def _is_same(step: Any, method: FunctionType, reading: _Reading, seed: int) -> bool:
    """Compare a copy of the method with its nodes, with generators of our own."""
    python, legacy, core = random.Random(seed), np.random.RandomState(seed), _core.Generator(seed)
    own = {random: python, random.random: python.random, random.uniform: python.uniform}
    space = dict(method.__globals__)
    for name in method.__code__.co_names:
        if isinstance(found := space.get(name), _RESOLVED):
            space[name] = own.get(found, found)
    copied = FunctionType(method.__code__, space)
    wanted = np.asarray(copied(SimpleNamespace(**reading.held), probe().copy()))
    got = np.empty_like(wanted)
    core.seed_others(seed)
    before = core.get_state()[: -2 * len(python_bytes(python.getstate()))]
    nodes: list[Node] = [("pad", {"margins": (0, 0, 0, 0)}), *reading.made]
    if not _core.apply_steps(nodes, np.array(probe()), got, "horizontal_first", core):
        return False
    after = before + python_bytes(python.getstate()) + numpy_bytes(legacy.get_state())
    return bool(np.array_equal(got, wanted)) and core.get_state() == after
