"""The five things that an error can mean."""

from __future__ import annotations

from flowctl.compat import StrEnum


class Kind(StrEnum):
    """What an error means; the values are also what a user's own rule may return."""

    FULL = "full"  # the target has no room now, or is away: it is left alone for a while
    AGAIN = "again"  # a conflict with another client, over by now
    NOT_ALLOWED = "not allowed"  # the job's fault: no record can succeed
    CONTENT = "content"  # the record's fault: the target is well and can't take this
    FAULT = "fault"  # anything else: it counts as an attempt
