"""While calls are short the process thread reads the connection; nothing else is different."""

from __future__ import annotations

import threading

import pytest
from wire_peers import PATIENCE_S, ThreadBolt, spout, tuple_of

from flowctl.core.messages import Heartbeat, Revoke, Revoked


def _after_short_calls(s, bolt: str, count: int = 300) -> list[int]:
    """Send short tuples one by one, so that the process thread reads; return their ids."""
    ids = list(range(1000, 1000 + count))
    for n in ids:
        s.send(bolt, tuple_of(n, n))
        s.until(lambda n=n: s.acks(bolt)[-1:] == [n])
    return ids


def test_a_long_call_after_short_ones_keeps_nothing_waiting():
    entered, leave = threading.Event(), threading.Event()

    def process(batch):
        if batch[0].value == "wait":
            entered.set()
            assert leave.wait(PATIENCE_S)

    with spout(heartbeat_s=0.05) as s:
        bolt = ThreadBolt(s.endpoint, "b1", process)
        s.until(lambda: s.joined("b1"))
        short = _after_short_calls(s, "b1")
        s.send("b1", tuple_of(1, 1), tuple_of(2, "wait"), tuple_of(3), tuple_of(4))
        assert entered.wait(PATIENCE_S)
        s.send("b1", Revoke("b1", [2, 3]))
        s.until(lambda: s.frames("b1", Revoked))
        assert s.frames("b1", Revoked) == [Revoked([3])]
        s.until(lambda: s.acks("b1") == [*short, 1])
        s.until(lambda: s.frames("b1", Heartbeat)[-1].busy_slots == 1)
        leave.set()
        s.until(lambda: s.acks("b1")[-2:] == [2, 4])
        s.end("b1")
        assert bolt.wait().acked == len(short) + 3


@pytest.mark.parametrize("use_tls", ["on", "off"])
def test_a_bolt_that_reads_between_short_calls_notices_the_end(use_tls):
    with spout(tls=use_tls) as s:
        ended = ThreadBolt(s.endpoint, "b1", lambda batch: None)
        cut_off = ThreadBolt(s.endpoint, "b2", lambda batch: None)
        s.until(lambda: all(s.joined(bolt) for bolt in ("b1", "b2")))
        for bolt in ("b1", "b2"):
            _after_short_calls(s, bolt, 100)
        s.end("b1")
        assert ended.wait().ended == "end"
    assert cut_off.wait().ended.startswith("eof")
