"""The ring of loops with a real thread, waits and wakes for each: it ends, and it stops."""

from __future__ import annotations

import threading
import time

import pytest

from flowctl.runtime.loops import run_until_interrupted
from flowctl.runtime.wait import Waiter
from tests.ring import Ring

LIMIT_S = 60.0  # a stop for a test that would hang; it takes a fraction of a second


@pytest.mark.req("S45", "S53")
@pytest.mark.parametrize("size", [1, 64])
def test_the_ring_acks_all_and_hears_the_stop(size: int):
    ring = Ring(roots=500, sizes=(size,) * 4, fan_out=2, clock=time.monotonic, make_park=Waiter)
    errors: list[BaseException] = []
    threads = [
        threading.Thread(
            target=run_until_interrupted,
            args=(loop,),
            kwargs={"park": ring.places[name].park, "report_error": errors.append},
            daemon=True,
        )
        for name, loop in ring.loops.items()
    ]
    for thread in threads:
        thread.start()
    until_s = time.monotonic() + LIMIT_S
    while not (ring.is_done or errors) and time.monotonic() < until_s:
        time.sleep(0.005)
    for place in ring.places.values():
        assert isinstance(place.park, Waiter)
        place.park.interrupt()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert errors == []
    assert sorted(ring.acked) == list(range(1, 501))
    ring.check()
