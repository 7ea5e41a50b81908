"""Keep a GPU busy, as another program would: ``python _gpuload.py DEVICE``.

It ends when standard input closes.
"""

from __future__ import annotations

import sys
import threading

import torch


def _serve(device: str) -> None:
    closed = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=wait, daemon=True).start()
    square = torch.randn(4096, 4096, device=device) / 64
    torch.cuda.synchronize()
    print("ready", flush=True)  # noqa: T201 - the protocol
    while not closed.is_set():
        for _ in range(8):
            square = square @ square / 64
        torch.cuda.synchronize()


if __name__ == "__main__":
    _serve(sys.argv[1])
