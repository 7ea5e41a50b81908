"""Test that NVRTC compiles the kernels, which needs no GPU.

It knows less than nvcc: no headers, and no host code.
"""

from __future__ import annotations

import pytest

from fastload.device import nvrtc
from fastload.device.decode import files

EPILOGUE = [b"-DVALUE_BYTES=4", b"-DCHANNELS=3"]


@pytest.mark.parametrize(
    ("file", "macros"), [*((file, []) for file in files.KERNELS), ("normalize.cu", EPILOGUE)], ids=lambda of: str(of)
)
def test_nvrtc_compiles(file: str, macros: list[bytes]) -> None:
    binding = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        _, program = binding.nvrtcCreateProgram(nvrtc.source(file).encode(), file.encode(), 0, [], [])
    except RuntimeError as error:
        pytest.skip(f"NVRTC is not installed: {error}")
    options = [b"--gpu-architecture=compute_80", b"-std=c++17", *macros]
    (result,) = binding.nvrtcCompileProgram(program, len(options), options)
    _, size = binding.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    binding.nvrtcGetProgramLog(program, log)
    assert result == binding.nvrtcResult.NVRTC_SUCCESS, log.decode(errors="replace")
