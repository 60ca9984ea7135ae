"""Types are known to msgspec before threads use them."""

from __future__ import annotations

import subprocess
import sys

# Threads change places as often as they can, so that they meet in the first use of a type.
_AT_ONCE = """
import sys, threading
from flowctl import Settings
from flowctl.wire.frames import ToBolt
from flowctl.runtime.inbound import ToSpout
from flowctl.wire.codec import decoder_of
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)
def use():
    barrier.wait()
    decoder_of(ToBolt), decoder_of(ToSpout), Settings().checked()
threads = [threading.Thread(target=use) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_runs_that_begin_in_threads_at_once_do_not_kill_the_process():
    for _ in range(3):
        subprocess.run([sys.executable, "-c", _AT_ONCE], check=True)
