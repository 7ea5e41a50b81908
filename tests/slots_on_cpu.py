"""The road through the slots without a GPU: arenas that are not registered, and a transfer that copies on the host."""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import torch

import fastload.loader as loader_module
import fastload.runtime as runtime_module
from fastload.device.transfer import Transfer
from fastload.host import map_leaves
from fastload.memory.slots import SlotPool, SlotWriter


class HostTransfer(Transfer):
    """Clones instead of copying to a device, so that a slot that is freed too early shows."""

    def start(self, data, batch=None, *, small=None, on_copied=None):
        def clone(leaf):
            return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

        return super().start(map_leaves(clone, data), batch, on_copied=on_copied)


def unregistered(count, max_bytes, homes, *, device):
    pool = SlotPool(count, max_bytes, homes, register=False, device=device)
    build = pool.want
    pool.want = lambda nbytes, wait=True: build(nbytes, wait=wait)  # deterministic: the arena is there at once
    return pool


@contextmanager
def slots_on_cpu():
    """Within it, ``FastLoader(device="cpu", dtype=torch.float32)`` runs through slots."""
    with (
        mock.patch.object(runtime_module, "SlotPool", unregistered),
        mock.patch.object(loader_module, "Transfer", HostTransfer),
        mock.patch.object(runtime_module, "no_slots_because", return_value=None),
    ):
        yield


def free(pool: SlotPool) -> int:
    """How many slots can be had now."""
    writer, got = SlotWriter(pool.handle), []
    while (acquired := writer.acquire(0)) is not None:
        got.append(acquired[0])
    for stamp in got:
        writer.give_back(stamp)
    return len(got)
