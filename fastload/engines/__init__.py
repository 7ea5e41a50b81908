"""Engines turn batches of indices into batches in host memory."""
