"""A sink that writes rows and the span of records they came from in one transaction."""

from __future__ import annotations

from flowctl_sql._rows import Row
from flowctl_sql._session import WriteResult
from flowctl_sql.sink import SqlSink

__all__ = ["Row", "SqlSink", "WriteResult"]
