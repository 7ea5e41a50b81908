"""States of native streams are read while the pipeline's thread drops old ones."""

from __future__ import annotations

from typing import Any

from fastload.native.batch import Batch, StreamStates


class Dropping(dict[int, Any]):
    """Drops what was looked for, as another thread may."""

    def get(self, key: int, default: Any = None) -> Any:
        return self.pop(key, default)

    def __contains__(self, key: object) -> bool:
        return self.pop(key, None) is not None


def test_a_state_that_is_dropped_while_it_is_read_is_the_state():
    states = StreamStates([b"first"])
    states.add(Batch(0, 0, ([],), indices=[0], after=b"0"), True, 0)
    states._kept = Dropping(states._kept)
    assert states._before(1) == b"0"
    assert states._before(1) == b"first"
