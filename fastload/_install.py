"""What is installed, and commands that install fastload's parts from its checkout.

On PyPI the name is another project's, so that no text may name an index.
"""

from __future__ import annotations

from typing import Final

REBUILD: Final = "in fastload's checkout: pip install --force-reinstall --no-deps ."


def with_extra(name: str) -> str:
    """Return the command that installs the packages of an extra."""
    return f"in fastload's checkout: pip install '.[{name}]'"


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    from importlib import metadata  # here: it takes 20 ms, and most programs don't ask

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
