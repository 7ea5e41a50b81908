"""Set how hard tests try: little by default, as hard as they can with ``pytest --all``."""

from __future__ import annotations

import hypothesis

QUICK_SHARE = 0.1
QUICK_STRIDE = 7
AT_LEAST = 8


def load_profile(*, everything: bool) -> None:
    """Choose how hard Hypothesis tries, before tests are imported."""
    common = hypothesis.settings(deadline=None, print_blob=True)
    hypothesis.settings.register_profile("quick", common, max_examples=examples(100, share=QUICK_SHARE))
    hypothesis.settings.register_profile("all", common, max_examples=100)
    hypothesis.settings.load_profile("all" if everything else "quick")


def examples(count: int, *, share: float | None = None) -> int:
    """Return ``count`` with ``--all``, else a tenth of it, but at least 8."""
    if share is None:
        share = 1.0 if _everything() else QUICK_SHARE
    return max(min(count, AT_LEAST), round(count * share))


def stride() -> int:
    """Return 1 with ``--all``, else 7: of the moments of an interrupt, how many to go on by."""
    return 1 if _everything() else QUICK_STRIDE


def _everything() -> bool:
    return hypothesis.settings.get_current_profile_name() == "all"
