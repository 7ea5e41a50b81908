"""Datasets of images that lie elsewhere than in folders: in archives and object stores."""

from typing import TYPE_CHECKING

from fastload._lazy import attributes

if TYPE_CHECKING:
    from fastload.pipeline.samples import EncodedImage
    from fastload.sources.archive_index import ArchiveError
    from fastload.sources.archives import TarImageFolder, TarSamples, ZipImageFolder
    from fastload.sources.object_store import ObjectStoreImageFolder
    from fastload.sources.parquet import ParquetImages, RowGroupSampler
else:  # the process that requests objects starts without torch
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "ArchiveError": "fastload.sources.archive_index:ArchiveError",
            "EncodedImage": "fastload.pipeline.samples:EncodedImage",
            "ObjectStoreImageFolder": "fastload.sources.object_store:ObjectStoreImageFolder",
            "ParquetImages": "fastload.sources.parquet:ParquetImages",
            "RowGroupSampler": "fastload.sources.parquet:RowGroupSampler",
            "TarImageFolder": "fastload.sources.archives:TarImageFolder",
            "TarSamples": "fastload.sources.archives:TarSamples",
            "ZipImageFolder": "fastload.sources.archives:ZipImageFolder",
        },
    )

__all__ = [
    "ArchiveError",
    "EncodedImage",
    "ObjectStoreImageFolder",
    "ParquetImages",
    "RowGroupSampler",
    "TarImageFolder",
    "TarSamples",
    "ZipImageFolder",
]
