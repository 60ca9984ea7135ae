"""A job over many small files that is killed in the middle of a save.

Arguments: the folder with the files, the Redis URL, the file that takes what was processed, which
save to die in (0: none), and when: before, within or after its call is sent.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from redis.connection import AbstractConnection

from flowctl import FlowControlSpout, LocalBolts
from flowctl.bolts.batch import Batch
from flowctl.config import Settings
from flowctl_files import TextLines
from flowctl_redis import RedisCheckpointStore, held

folder, url, journal, save, moment = sys.argv[1:]
held.LOOSE_MAX, held.BLOCK_PARTITIONS = 60, 30  # so that saves also pack
sent = AbstractConnection.send_packed_command
saves = 0


def send(self: Any, command: Any, check_health: bool = True) -> Any:
    global saves
    data = b"".join([command] if isinstance(command, bytes) else command)
    if b"the revision that the caller knows" not in data:  # the text of save.lua
        return sent(self, command, check_health)
    saves += 1
    if saves != int(save):
        return sent(self, command, check_health)
    part = {"before": 0, "within": len(data) // 2, "after": len(data)}[moment]
    self._sock.sendall(data[:part])
    os.kill(os.getpid(), signal.SIGKILL)


AbstractConnection.send_packed_command = send  # type: ignore[method-assign]
output = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def process(batch: Batch) -> None:
    """Write down which lines are processed, in one call."""
    name = os.path.basename(batch.span.partition)
    os.write(output, "".join(f"{name} {record.value}\n" for record in batch).encode())


FlowControlSpout(
    name="many",
    producer=TextLines(os.path.join(folder, "*.txt")),
    bolts=LocalBolts(process, count=2),
    checkpoint=RedisCheckpointStore(url),
    settings=Settings().with_overrides({"checkpoint.interval_s": "0.05"}),
).run()
