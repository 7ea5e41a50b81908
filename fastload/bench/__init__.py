"""Benchmarks that users run on their own machines."""

from typing import Final

VIT_S: Final = "vit_s_16"  # ViT-S/16: 12 layers, 6 heads, 384 wide, 22 million weights
TINY: Final = "tiny"  # one convolution on 32 px: a step that a CPU does in milliseconds
