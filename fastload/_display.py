"""Small HTML for notebooks, in their own style: readable on light and dark ground."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def card(title: str, *parts: str) -> str:
    """Put HTML parts under a title, which is text."""
    return f"<div><p><b>{html.escape(title)}</b></p>{''.join(parts)}</div>"


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Make a left-aligned table of text; empty if there are no rows."""

    def line(cells: Sequence[object], tag: str) -> str:
        inner = "".join(f'<{tag} style="text-align:left">{html.escape(str(cell))}</{tag}>' for cell in cells)
        return f"<tr>{inner}</tr>"

    body = "".join(line(row, "td") for row in rows)
    top = f"<thead>{line(head, 'th')}</thead>" if head else ""
    return f"<table>{top}<tbody>{body}</tbody></table>" if body else ""


def paragraphs(texts: Iterable[str]) -> str:
    """Make a paragraph of each text."""
    return "".join(f"<p>{html.escape(text)}</p>" for text in texts)
