"""What wakes the decode pipeline's thread."""

from __future__ import annotations

from queue import SimpleQueue

from fastload.engines.decode_batch import woken_by


def test_one_look_answers_several_wakeups():
    wakeups = SimpleQueue()
    for _ in range(3):
        wakeups.put(None)
    assert woken_by(wakeups) is None
    assert wakeups.empty()


def test_the_end_of_the_iterator_is_not_taken_for_another_wakeup():
    wakeups, end = SimpleQueue(), object()
    for reason in (None, end, None):
        wakeups.put(reason)
    assert woken_by(wakeups) is end
    assert not wakeups.empty()
