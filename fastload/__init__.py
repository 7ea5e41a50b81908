"""Torch's DataLoader, several times faster.

The same batches, already on the GPU, with every stage named in Nsight.
"""

from typing import TYPE_CHECKING

from fastload._lazy import attributes
from fastload._version import __version__

if TYPE_CHECKING:
    from fastload.check.results import FallbackWarning
    from fastload.loader import FastLoader
    from fastload.loader import FastLoader as DataLoader
    from fastload.nvtx.annotate import annotate
    from fastload.nvtx.modules import annotate_modules
    from fastload.plan import Plan, Step
    from fastload.prefetch import prefetch_to_device
    from fastload.profiling.recording.capture import capture
    from fastload.stats.diagnosis import Report
    from fastload.stats.progress import progress
    from fastload.stats.ranks import all_gather_stats
    from fastload.stats.stats import Stats
    from fastload.verification import Verification, verify
    from fastload.vision.codec import JpegInfo, jpeg_info
else:  # PEP 562: a name is imported when it is first used, so that the command line starts without torch
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "DataLoader": "fastload.loader:FastLoader",
            "FallbackWarning": "fastload.check.results:FallbackWarning",
            "FastLoader": "fastload.loader:FastLoader",
            "JpegInfo": "fastload.vision.codec:JpegInfo",
            "Plan": "fastload.plan:Plan",
            "Report": "fastload.stats.diagnosis:Report",
            "Stats": "fastload.stats.stats:Stats",
            "Step": "fastload.plan:Step",
            "Verification": "fastload.verification:Verification",
            "all_gather_stats": "fastload.stats.ranks:all_gather_stats",
            "annotate": "fastload.nvtx.annotate:annotate",
            "annotate_modules": "fastload.nvtx.modules:annotate_modules",
            "capture": "fastload.profiling.recording.capture:capture",
            "jpeg_info": "fastload.vision.codec:jpeg_info",
            "prefetch_to_device": "fastload.prefetch:prefetch_to_device",
            "progress": "fastload.stats.progress:progress",
            "verify": "fastload.verification:verify",
        },
        dict.fromkeys(("DataLoader", "FastLoader"), "fastload.elsewhere:LoaderElsewhere"),
    )

__all__ = [
    "DataLoader",
    "FallbackWarning",
    "FastLoader",
    "JpegInfo",
    "Plan",
    "Report",
    "Stats",
    "Step",
    "Verification",
    "__version__",
    "all_gather_stats",
    "annotate",
    "annotate_modules",
    "capture",
    "jpeg_info",
    "prefetch_to_device",
    "progress",
    "verify",
]
