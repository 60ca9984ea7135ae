"""A sink that writes rows and the span of records they came from in one transaction, and a source
that the bolts read by ranges of a key."""

from __future__ import annotations

from flowctl_sql._rows import Row
from flowctl_sql._session import WriteResult
from flowctl_sql.ranges import SqlRanges
from flowctl_sql.sink import SqlSink

__all__ = ["Row", "SqlRanges", "SqlSink", "WriteResult"]
