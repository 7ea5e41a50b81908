"""Run every case of this folder on each backend, by default the simulated one."""

from __future__ import annotations

import pytest
from backends import BACKENDS, Backend, parameters, simulated


@pytest.fixture(params=parameters(*BACKENDS))
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    if request.param == "simulated":
        simulated.install(monkeypatch)
    module, _, test = request.node.nodeid.rpartition("::")
    return BACKENDS[request.param].of(f"{module}::{test.replace(request.param, '', 1)}")
