"""Colours of the project's pictures, on a light page and on a dark one.

Text has a contrast of at least 4.5 with what it stands on, lines and bars one of at least 3 (WCAG 2.2, level AA);
``tests/unit/test_pictures.py`` computes both.
"""

from __future__ import annotations

from typing import Final

LIGHT: Final = {
    "card": "#ffffff",
    "zone": "#f6f8fa",
    "rule": "#d0d7de",
    "ink": "#1f2328",
    "muted": "#59636e",
    "own": "#1a7f37",
    "peer": "#768390",
    "ceiling": "#9a6700",
    "blue": "#0969da",
    "blue-fill": "#ddf4ff",
    "green": "#1a7f37",
    "green-fill": "#dafbe1",
    "yellow": "#9a6700",
    "yellow-fill": "#fff8c5",
    "purple": "#8250df",
    "purple-fill": "#fbefff",
    "red": "#cf222e",
    "red-fill": "#ffebe9",
}
DARK: Final = {
    "card": "#161b22",
    "zone": "#1f262e",
    "rule": "#3d444d",
    "ink": "#f0f6fc",
    "muted": "#b1bac4",
    "own": "#2ea043",
    "peer": "#7d8590",
    "ceiling": "#bb8009",
    "blue": "#58a6ff",
    "blue-fill": "#12304f",
    "green": "#3fb950",
    "green-fill": "#12381f",
    "yellow": "#d29922",
    "yellow-fill": "#3d2e09",
    "purple": "#bc8cff",
    "purple-fill": "#32224f",
    "red": "#ff7b72",
    "red-fill": "#4a1d1f",
}
TEXT: Final = ("ink", "muted")  # colours of text; the others are those of lines, bars and backgrounds


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, by WCAG's definition."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of contrast, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def readable_on(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour."""
    return max(("#000000", "#ffffff"), key=lambda text: contrast(text, colour))


def variables(colours: dict[str, str]) -> str:
    """Colours as variables of a style sheet."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def style() -> str:
    """Return a picture's first style rules: the colours, in light or dark.

    ``docs/conf.py`` turns the second rule into one that follows the switch of the documentation.
    """
    dark = f"@media (prefers-color-scheme: dark) {{ .fl {{ {variables(DARK)} }} }}"
    return f".fl {{ {variables(LIGHT)} }}\n    {dark}"
