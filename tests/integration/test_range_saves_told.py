"""A bolt that waits until what it has done is saved, against a spout that is moved by hand."""

from __future__ import annotations

import msgspec
import pytest

from flowctl.core.messages import Split, SplitAnswer
from flowctl.wire.frames import Saved
from tests.integration.range_peers import Gate, range_of, started, told
from tests.integration.wire_peers import PATIENCE_S, spout
from tests.range_parts import NumberReader


@pytest.mark.parametrize("is_async", [False, True])
def test_a_third_batch_begins_once_the_first_one_is_saved(is_async, monkeypatch):
    monkeypatch.setattr("flowctl.bolts.range_desk.PATIENCE_S", 1e6)  # only a save lets it go on
    gate = Gate()
    with spout() as s:
        bolt = started(s, NumberReader(block=50_000), gate.slowly if is_async else gate)
        s.send("b1", msgspec.structs.replace(range_of(1, 0, 50_000), tells_saved=True))
        for number in (1, 2):
            assert gate.begun.acquire(timeout=PATIENCE_S)
            gate.go.release()
            s.until(lambda number=number: len(told(s, 1).progress) == number)
        assert all(frame.did.is_awaited for frame in told(s, 1).progress)
        gate.go.release(1000)
        s.send("b1", Split("b1", 1, 1, 1.0))  # answered, so the bolt had time to begin a batch
        s.until(lambda: s.frames("b1", SplitAnswer))
        assert not gate.begun.acquire(blocking=False)
        s.send("b1", Saved(1))
        assert gate.begun.acquire(timeout=PATIENCE_S)
        s.send("b1", Saved(1_000))
        s.until(lambda: told(s, 1).covers(0, 50_000))
        s.end("b1")
        bolt.wait()
