"""Decode JPEG, PNG and WebP images to arrays in C++, with Pillow's exact pixels."""

from fastload.pipeline.installed.decodes import Calibration, calibrate
from fastload.vision.codec import JpegInfo, decode, decode_batch, jpeg_info
from fastload.vision.errors import DecodeError
from fastload.vision.handlers import image_handler
from fastload.vision.jpeg_index import JpegIndex

__all__ = [
    "Calibration",
    "DecodeError",
    "JpegIndex",
    "JpegInfo",
    "calibrate",
    "decode",
    "decode_batch",
    "image_handler",
    "jpeg_info",
]
