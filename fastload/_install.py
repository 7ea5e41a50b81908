"""Commands that install fastload's parts from its checkout.

On PyPI the name is another project's, so that no text may name an index.
"""

from __future__ import annotations

from typing import Final

REBUILD: Final = "in fastload's checkout: pip install --force-reinstall --no-deps ."


def with_extra(name: str) -> str:
    """Return the command that installs the packages of an extra."""
    return f"in fastload's checkout: pip install '.[{name}]'"
