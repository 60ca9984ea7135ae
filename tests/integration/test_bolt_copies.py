"""Copies of tuples that a bolt has, on a real connection."""

from __future__ import annotations

import threading

from wire_peers import PATIENCE_S, ThreadBolt, spout, tuple_of

from flowctl.core.messages import Fail


def test_a_copy_of_a_tuple_that_the_bolt_has_is_not_processed():
    seen, entered, leave = [], threading.Event(), threading.Event()

    def process(batch) -> None:
        seen.append(batch[0].value)
        entered.set()
        assert leave.wait(PATIENCE_S)

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", process)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "at work"), tuple_of(2, "queued"))
        assert entered.wait(PATIENCE_S)
        copies = (tuple_of(1, "at work, again", attempt=2), tuple_of(2, "queued, again", attempt=2))
        s.send("b1", *copies, tuple_of(3, "last"))
        leave.set()
        s.until(lambda: s.acks("b1") == [1, 2, 3])
        s.send("b1", tuple_of(2, "done, again", attempt=3), tuple_of(4, "the end"))
        s.until(lambda: s.acks("b1") == [1, 2, 3, 4])
        s.end("b1")
        bolt.wait()
    assert seen == ["at work", "queued", "last", "the end"]


def test_a_tuple_that_failed_is_processed_when_it_comes_again():
    seen = []

    def process(batch) -> None:
        seen.append(batch[0].value)
        if len(seen) == 1:
            raise ValueError("not yet")

    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", process)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "first"))
        s.until(lambda: s.frames("b1", Fail))
        s.send("b1", tuple_of(1, "again", attempt=2))
        s.until(lambda: s.acks("b1") == [1])
        s.end("b1")
        bolt.wait()
    assert seen == ["first", "again"]
