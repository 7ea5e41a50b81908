"""Torch's DataLoader, several times sooner: the same batches, already on the GPU, with every stage named in Nsight."""

from fastload._version import __version__
from fastload.device.prefetch import prefetch_to_device
from fastload.insight.annotate import annotate
from fastload.insight.capture import capture
from fastload.insight.loader_report import Report
from fastload.insight.modules import annotate_modules
from fastload.insight.progress import progress
from fastload.insight.stats import Stats
from fastload.loader import FastLoader
from fastload.loader import FastLoader as DataLoader
from fastload.plan import Plan, Step
from fastload.verify import Verification, verify
from fastload.vision.codec import JpegInfo, jpeg_info

__all__ = [
    "DataLoader",
    "FastLoader",
    "JpegInfo",
    "Plan",
    "Report",
    "Stats",
    "Step",
    "Verification",
    "__version__",
    "annotate",
    "annotate_modules",
    "capture",
    "jpeg_info",
    "prefetch_to_device",
    "progress",
    "verify",
]
