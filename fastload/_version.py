"""The one place that knows the version: the installed package's own metadata."""

from importlib.metadata import version

__version__ = version("fastload")
