"""Images that lie in archives and object stores, and samples made in any process."""

from typing import TYPE_CHECKING

from fastload._lazy import attributes

if TYPE_CHECKING:
    from fastload.pipeline.datasets.samples import EncodedImage
    from fastload.sources.archive_index import ArchiveError
    from fastload.sources.archives import TarImageFolder, TarSamples, ZipImageFolder
    from fastload.sources.object_store import ObjectStoreImageFolder
    from fastload.sources.parquet import ParquetImages, RowGroupSampler
    from fastload.sources.seeded_samples import SeededSamples, seed_of
else:  # the process that requests objects starts without torch
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "ArchiveError": "fastload.sources.archive_index:ArchiveError",
            "EncodedImage": "fastload.pipeline.datasets.samples:EncodedImage",
            "ObjectStoreImageFolder": "fastload.sources.object_store:ObjectStoreImageFolder",
            "SeededSamples": "fastload.sources.seeded_samples:SeededSamples",
            "ParquetImages": "fastload.sources.parquet:ParquetImages",
            "RowGroupSampler": "fastload.sources.parquet:RowGroupSampler",
            "TarImageFolder": "fastload.sources.archives:TarImageFolder",
            "TarSamples": "fastload.sources.archives:TarSamples",
            "ZipImageFolder": "fastload.sources.archives:ZipImageFolder",
            "seed_of": "fastload.sources.seeded_samples:seed_of",
        },
    )

__all__ = [
    "ArchiveError",
    "EncodedImage",
    "ObjectStoreImageFolder",
    "ParquetImages",
    "RowGroupSampler",
    "SeededSamples",
    "TarImageFolder",
    "TarSamples",
    "ZipImageFolder",
    "seed_of",
]
