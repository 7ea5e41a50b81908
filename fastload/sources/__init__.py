"""Datasets of images that lie elsewhere than in folders: in archives, tables and object stores."""

from typing import TYPE_CHECKING

from fastload._lazy import attributes

if TYPE_CHECKING:
    from fastload.sources.object_store import ObjectStoreImageFolder
else:  # the process that requests objects starts without torch
    __getattr__, __dir__ = attributes(
        __name__, {"ObjectStoreImageFolder": "fastload.sources.object_store:ObjectStoreImageFolder"}
    )

__all__ = ["ObjectStoreImageFolder"]
