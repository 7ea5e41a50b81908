"""JPEG images to arrays, with Pillow's exact pixels, in C++."""

from fastload.vision.codec import JpegInfo, jpeg_info

__all__ = ["JpegInfo", "jpeg_info"]
