"""What is installed, and commands that install fastload's parts in the way that fastload itself was installed."""

from __future__ import annotations

from typing import Any

from fastload._version import DISTRIBUTION


def with_extra(name: str) -> str:
    """Return the command that installs the packages of an extra."""
    if "dir_info" in _source():
        return f"in fastload's checkout: pip install '.[{name}]'"
    return f"pip install '{DISTRIBUTION}[{name}]'"  # what is there already is not replaced


def rebuild(packages: str) -> str:
    """Return what brings a core that works, from a checkout with the help of system packages."""
    source = _source()
    if "dir_info" in source:
        return f"{packages}, then rebuild, in fastload's checkout: pip install --force-reinstall --no-deps ."
    return f"pip install --force-reinstall --no-deps {source.get('url', DISTRIBUTION)}"


def _source() -> dict[str, Any]:
    """What pip wrote down of a folder or of a wheel's file; nothing if fastload comes from an index."""
    import json
    from importlib import metadata  # here: it takes 20 ms, and most programs don't ask

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
