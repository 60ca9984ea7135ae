"""What a row costs: the CPU time of all that was started for it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name, which is in parentheses and may hold anything.
_SESSION = 3
_TIMES = slice(11, 15)  # user and system, of the process and of the children it has waited for


def ended_s() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    ours = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in ours)


def living_s(sessions: Iterable[int]) -> float:
    """Return the CPU seconds of all that runs in ``sessions``.

    What is orphaned before it ends (the JVM of a driver that is killed) then counts nowhere.
    """
    total, wanted = 0, set(sessions)
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[_SESSION]) in wanted:
            total += sum(map(int, fields[_TIMES]))
    return total / _TICKS_PER_S
