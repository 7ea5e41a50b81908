"""The backends on which every case of this folder is run; in the quick suite only the simulated one.

It takes everything that a GPU would: the pin-memory thread, slots, copies ahead. The other two do less.
"""

from __future__ import annotations

import pytest
from backends import BACKENDS, Road, simulated


@pytest.fixture(
    params=[
        pytest.param("plain", marks=pytest.mark.slow),
        pytest.param("wrapped", marks=pytest.mark.slow),
        "simulated",
        pytest.param("gpu", marks=pytest.mark.gpu),
    ]
)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Road:
    if request.param == "simulated":
        simulated.install(monkeypatch)
    module, _, test = request.node.nodeid.rpartition("::")
    return BACKENDS[request.param].of(f"{module}::{test.replace(request.param, '', 1)}")
