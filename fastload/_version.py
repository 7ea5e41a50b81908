"""Say what is installed, its version, and which commands install more."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

DISTRIBUTION: Final = "fastload-torch"  # on PyPI the name of what is imported is another project's
__version__ = version(DISTRIBUTION)


def with_extra(name: str) -> str:
    """Return the command that installs the packages of an extra."""
    if "dir_info" in _source():
        return f"in fastload's checkout: pip install '.[{name}]'"
    return f"pip install '{DISTRIBUTION}[{name}]'"  # what is there already is not replaced


def rebuild(packages: str) -> str:
    """Return the command that brings a core that works."""
    source = _source()
    if "dir_info" in source:
        return f"{packages}, then rebuild, in fastload's checkout: pip install --force-reinstall --no-deps ."
    return f"pip install --force-reinstall --no-deps {source.get('url', DISTRIBUTION)}"


def _source() -> dict[str, Any]:
    """Return what pip wrote down of a folder or a wheel's file, if anything."""
    import json
    from importlib import metadata

    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {"dir_info": {}}  # a checkout's folder is on the path
    found: dict[str, Any] = json.loads(text or "{}")
    return found


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
