"""Decoding on the GPU."""
