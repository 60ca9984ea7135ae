"""Files that are not what they were: the errors, with times as people read them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from flowctl.core.ranges.extent import Extent
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
        saved, now = checkpoint.partitions[name], extents[name].identity
        was = saved.mark if saved.end is None else saved.end
        if not isinstance(was, str) or not now or was == now:
            continue
        raise SourceError(
            f"{name}: {'a part' if saved.end is None else 'all'} of it was done by an earlier run,"
            f" but then it was written again or replaced: it was {_as_read(was)}, and is now"
            f" {_as_read(now)}.",
            remedy="To process it again from its beginning: flowctl checkpoint rewind JOB"
            f" --partition {shlex.quote(name)} --start --sink FILE.py:SINK (without --sink an"
            " SqlSink takes its records for those that it has and skips them; leave it out if"
            " there is no such sink). To process everything again, give the job another name. You"
            " can also bring the old file back with its modification time (cp -p), or leave it out"
            " and put new data beside it under another name.",
        )


def _as_read(identity: str) -> str:
    return _TIME_NS.sub(lambda found: f" bytes of {_time(int(found[1]))}", identity)


def _time(unix_ns: int) -> str:
    seconds, rest = divmod(unix_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
