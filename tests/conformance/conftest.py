"""The roads on which every case of this folder is run."""

from __future__ import annotations

import pytest
from roads import ROADS, Road, simulated


@pytest.fixture(params=["plain", "wrapped", "simulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Road:
    if request.param == "simulated":
        simulated.install(monkeypatch)
    module, _, test = request.node.nodeid.rpartition("::")
    return ROADS[request.param].of(f"{module}::{test.replace(request.param, '', 1)}")
