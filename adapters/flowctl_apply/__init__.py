"""Rows in, rows out: :func:`apply_parquet` runs a function over Parquet files.

A killed run goes on with the results that it has.
"""

from __future__ import annotations

from flowctl_apply.parquet_apply import Applied, apply_parquet

__all__ = ["Applied", "apply_parquet"]
