"""Bounds that every report of a bolt must keep, whatever it works on.

Each function returns what can't be true, "" if nothing.  Pure and thread-safe.
"""

from __future__ import annotations

from typing import Final

from flowctl.wire.frames import FailFrame, RangeFail

# Three years: longer than any process runs, and far from where sums lose their precision.
_SECONDS_MAX: Final = 1e8
# Sums of clock differences may end up slightly below 0.
_SECONDS_MIN: Final = -1e-3
#: The most characters of a text.  An error is sent with 1,000 and a traceback with 4,000
#: (bolts/worker.py): room for other versions, but not enough to fill the driver's memory.
TEXT_MAX: Final = 1 << 16


def is_duration(seconds: float) -> bool:
    """Whether a bolt can have measured it; nan and infinity can't be measured."""
    return _SECONDS_MIN <= seconds <= _SECONDS_MAX


def times_breach(*times_s: float) -> str:
    """Check durations that a bolt measured."""
    for seconds in times_s:
        if not _SECONDS_MIN <= seconds <= _SECONDS_MAX:  # not by a call: this is asked for each ack
            return f"times of {', '.join(map(str, times_s))} s are not possible"
    return ""


def fail_breach(frame: FailFrame | RangeFail) -> str:
    """Check what a bolt says about an error, and how long it wants to wait after it."""
    if frame.after_s is not None and not 0 <= frame.after_s <= _SECONDS_MAX:
        return f"it wants to wait for {frame.after_s} s"
    if len(frame.error) > TEXT_MAX or len(frame.traceback) > TEXT_MAX:
        return f"an error of {max(len(frame.error), len(frame.traceback))} characters"
    return ""
