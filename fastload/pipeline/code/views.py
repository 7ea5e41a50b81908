"""Callables that make several views of one image, as MoCo's, SimCLR's and DINO's do.

Each is recognised by its code, as in :mod:`fastload.pipeline.code.wrappers`. A view is a transform of the whole image;
one that occurs several times draws anew each time.
"""

from __future__ import annotations

import builtins
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from fastload.pipeline.code.wrappers import flags_of, held_by, method_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VIEWS_MAX: Final = 64
_PAIRS: Final = (
    "return [self.first({x}), self.{second}({x})]",
    "return self.first({x}), self.{second}({x})",
    # Python joins instructions of one line.
    "\n  q = self.first({x})\n  k = self.{second}({x})\n  return [q, k]",
    "\n  q = self.first({x})\n  k = self.{second}({x})\n  return q, k",
)
_BODIES: Final[dict[str, Callable[..., list[Any]]]] = {
    **{body.replace("{second}", "first"): lambda first: [first, first] for body in _PAIRS},
    **{body.replace("{second}", "second"): lambda first, second: [first, second] for body in _PAIRS},
    """
  views = []
  views.append(self.first({x}))
  views.append(self.second({x}))
  for _ in range(self.times):
    views.append(self.other({x}))
  return views""": lambda first, second, other, times: [first, second, *_repeated([(other, times)])],
    "return [self.one({x}) for _ in range(self.times)]": lambda one, times: _repeated([(one, times)]),
    "return [one({x}) for one in self.several]": lambda several: list(_sequence(several)),
    "return [one({x}) for one, times in self.pairs for _ in range(times)]": lambda pairs: _repeated(pairs),
}
"""What a method's body returns, and which views these are, from the values of the attributes in it."""


def views_of(transform: Any) -> list[Any] | None:
    """List the transforms whose results a callable returns for an image, if that is known."""
    method = method_of(transform)
    if method is None or "range" in method.__globals__ or builtins.range is not _RANGE:
        return None
    for template, views in _TEMPLATES:
        names: dict[str, str] = {}
        if not _matches(method.__code__, template, names):
            continue
        if any(names.pop(name, name) != name for name in ("append", "range")):
            return None
        try:
            made = views(**{name: held_by(transform, own) for name, own in names.items()})
        except (LookupError, TypeError, ValueError):
            return None
        return made if 2 <= len(made) <= VIEWS_MAX else None
    return None


def _matches(code: CodeType, template: CodeType, names: dict[str, str]) -> bool:
    """Whether code does what a template does, but for names, which it notes.

    Variables have places in the code, also those of the function around it. Constants are functions within alone.

    Args:
        code: The code.
        template: The template.
        names: The code's global names and attributes by the template's.
    """
    if code.co_code != template.co_code or _shape(code) != _shape(template):
        return False
    if any(names.setdefault(known, own) != own for known, own in zip(template.co_names, code.co_names, strict=True)):
        return False
    return all(_matches(*pair, names) for pair in zip(_inner(code), _inner(template), strict=True))


def _shape(code: CodeType) -> tuple[int, ...]:
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, len(code.co_varnames)
    return *counts, len(code.co_names), len(code.co_freevars), len(_inner(code)), flags_of(code)


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _sequence(value: Any) -> Any:
    if type(value) not in (list, tuple):
        raise TypeError("views must be in a list or tuple")
    return value


def _repeated(pairs: Any) -> list[Any]:
    views: list[Any] = []
    for pair in _sequence(pairs):
        one, times = _sequence(pair)
        if type(times) is not int or times > VIEWS_MAX:
            raise ValueError("a number of views must be a small integer")
        views += [one] * times
    return views


def _templates() -> Iterator[tuple[CodeType, Callable[..., list[Any]]]]:
    # Variables of comprehensions are stored in the order of their names: the image's may come before or after "self".
    for body, views in _BODIES.items():
        for image in ("image", "x"):
            source = f"def call(self, {image}): {body.format(x=image)}"
            module = compile(source, "<views>", "exec", dont_inherit=True)
            yield _inner(module)[0], views


_RANGE: Final = range
_TEMPLATES: Final = tuple(_templates())
