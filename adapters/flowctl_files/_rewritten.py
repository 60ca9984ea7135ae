"""Files that are not what they were: the errors, with times as people read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final

from flowctl.core.ranges.extent import Extent, check_not_rewritten
from flowctl.core.records import Checkpoint
from flowctl.errors import SourceError

# What an identity says of a file on a disk: its modification time [unix ns], since 2001.
_TIME_NS: Final = re.compile(r" bytes of (\d{19})\b")


def changed(name: str, before: str, now: str) -> SourceError:
    """The error for a file that is not what the driver saw."""
    return SourceError(
        f"{name}: it changed during the run: it was {_as_read(before)} and is {_as_read(now)}.",
        remedy="Read files that don't change any more, or use a source by value (TextLines).",
    )


def check_unchanged(extents: Mapping[str, Extent], checkpoint: Checkpoint) -> None:
    """Raise :class:`SourceError` for a file that was written again since rows of it were done."""
    for name in extents.keys() & checkpoint.partitions.keys():
        check_not_rewritten(name, checkpoint.partitions[name], extents[name], as_read=_as_read)


def _as_read(identity: str) -> str:
    return _TIME_NS.sub(lambda found: f" bytes of {_time(int(found[1]))}", identity)


def _time(unix_ns: int) -> str:
    seconds, rest = divmod(unix_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
