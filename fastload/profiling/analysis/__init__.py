"""A recording's numbers and what they mean: the bottleneck, the kernels' limits."""
