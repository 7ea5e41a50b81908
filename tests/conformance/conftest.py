"""Run every case of this folder on each backend, by default the simulated one."""

from __future__ import annotations

import multiprocessing

import pytest
from backends import BACKENDS, Backend, parameters

from fastload.device.normalize import TableImages

# Workers of a fork server that has imported these start in milliseconds; it is started once.
multiprocessing.set_forkserver_preload(["fastload", "pytest", "torchvision.transforms.v2"])


@pytest.fixture(params=parameters(*BACKENDS))
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    BACKENDS[request.param].install(monkeypatch)
    module, _, test = request.node.nodeid.rpartition("::")
    return BACKENDS[request.param].of(f"{module}::{test.replace(request.param, '', 1)}")


@pytest.fixture
def leaves(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Dtypes of the pixels that become images on a device, so far."""
    seen: list[object] = []
    former = TableImages.__init__

    def noted(self, pixels, *arguments):
        seen.append(pixels.dtype)
        former(self, pixels, *arguments)

    monkeypatch.setattr(TableImages, "__init__", noted)
    return seen
