"""NVTX ranges: the loader's stages, and the user's own."""
