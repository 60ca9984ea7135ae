"""Services over HTTP.

``HttpSink`` writes to any service, ``BulkSink`` to OpenSearch and Elasticsearch; ``OpenAIBatch``
and ``AnthropicBatch`` are batch APIs for ``apply``.
"""

from __future__ import annotations

from flowctl_http.answers import Response, StatusError
from flowctl_http.batches import AnthropicBatch, OpenAIBatch
from flowctl_http.bulk import BulkSink
from flowctl_http.sink import HttpSink

__all__ = ["AnthropicBatch", "BulkSink", "HttpSink", "OpenAIBatch", "Response", "StatusError"]
