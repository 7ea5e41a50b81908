"""The one place that knows the version: the installed package's own metadata."""

from importlib.metadata import version
from typing import Final

DISTRIBUTION: Final = "fastload-torch"  # on PyPI the name of what is imported is another project's
__version__ = version(DISTRIBUTION)
