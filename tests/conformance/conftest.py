"""Run every case of this folder on each backend, by default the simulated one."""

from __future__ import annotations

import multiprocessing

import pytest
from backends import BACKENDS, Backend, parameters

# Workers of a fork server that has imported these start in milliseconds; it is started once.
multiprocessing.set_forkserver_preload(["fastload", "pytest", "torchvision.transforms.v2"])


@pytest.fixture(params=parameters(*BACKENDS))
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    BACKENDS[request.param].install(monkeypatch)
    module, _, test = request.node.nodeid.rpartition("::")
    return BACKENDS[request.param].of(f"{module}::{test.replace(request.param, '', 1)}")
