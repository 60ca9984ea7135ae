"""A loopback HTTP service for tests: keeps what it is sent, and answers as it is told."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]


class Service:
    """What it saw: ``requests`` as (path, headers, body), ``connections`` that were opened."""

    def __init__(self, answer: Callable[[str, dict[str, str], bytes], Answer]) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.lock = threading.Lock()
        self.url = ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # all connections of a client may come at once


@contextmanager
def serve(answer: Callable[[str, dict[str, str], bytes], Answer]) -> Iterator[Service]:
    """Serve on loopback; ``answer(path, headers, body)`` is called by one thread at a time.

    Status 0 closes the connection without an answer.
    """
    service = Service(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keep-alive

        def setup(self) -> None:
            super().setup()
            with service.lock:
                service.connections += 1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with service.lock:
                service.requests.append((self.path, headers, body))
                status, more, content = service.answer(self.path, headers, body)
            if not status:  # the answer is lost
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_PUT = do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    service.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Cluster:
    """As much of OpenSearch as ``_bulk`` needs.

    ``judge(action, id, document)`` gives (status, type, reason) of an item; below 300 it is kept.
    ``accepted`` counts how often each document was taken.
    """

    def __init__(self, judge: Callable[[str, str, Any], tuple[int, str, str]]) -> None:
        self.judge = judge
        self.documents: dict[str, Any] = {}
        self.accepted: Counter[str] = Counter()
        self.items = 0

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        assert path == "/_bulk" and headers["content-type"] == "application/x-ndjson"
        lines = iter([json.loads(line) for line in body.splitlines()])
        items = [self._item(meta, lines) for meta in lines]
        errors = any("error" in next(iter(item.values())) for item in items)
        content = json.dumps({"took": 1, "errors": errors, "items": items}).encode()
        return 200, {"Content-Type": "application/json"}, content

    def _item(self, meta: dict[str, Any], lines: Iterator[Any]) -> dict[str, Any]:
        ((action, said),) = meta.items()
        document = None if action == "delete" else next(lines)
        self.items += 1
        status, kind, reason = self.judge(action, said["_id"], document)
        result = {"_index": said["_index"], "_id": said["_id"], "status": status}
        if kind:
            return {action: {**result, "error": {"type": kind, "reason": reason}}}
        self.documents[said["_id"]] = document
        self.accepted[said["_id"]] += 1
        return {action: result}
