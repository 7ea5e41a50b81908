"""Tensors in worker processes whose pixels are made when their batch is."""
