"""Sinks over HTTP: ``HttpSink`` for any service, ``BulkSink`` for OpenSearch and Elasticsearch."""

from __future__ import annotations

from flowctl_http.bulk import BulkSink
from flowctl_http.sink import HttpSink

__all__ = ["BulkSink", "HttpSink"]
