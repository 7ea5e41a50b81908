"""Indices of JPEG files: where decoding can start."""
