"""NVTX ranges of the loader's stages and of user code."""
