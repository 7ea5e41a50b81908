"""What a plan or a refusal says, for tests that look for parts."""

from __future__ import annotations

from typing import Any

from fastload.pipeline.recipe import Refusal, read_recipe


def text_of(loader: Any) -> str:
    """A loader's plan as one line."""
    return " ".join(str(loader.plan).split())


def refusal(dataset: Any) -> str:
    """Why a dataset has no recipe."""
    result = read_recipe(dataset)
    assert isinstance(result, Refusal)
    return "; ".join(result.reasons)
