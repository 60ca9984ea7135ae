"""Batch APIs on loopback, as OpenAI's and Anthropic's speak: for tests of ``apply`` with them.

Both take batches, work for some polls, answer each request as ``judge`` says, and lose answers, are
late with their lists, or have no room where they are told so.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from tests.search_service import Answer

Judge = Callable[[dict[str, Any], int], "tuple[int, Any]"]
"""Gets a request's body, and how often it was asked before; gives a status and a body or error."""

_BOUNDARY = re.compile(r"boundary=(.+)")


class _Fake:
    """``asked`` counts how often each request was answered, ``submitted`` how often it was
    accepted; ``losing`` names calls to lose."""

    def __init__(self, judge: Judge, *, polls: int = 1) -> None:
        self.judge = judge
        self.polls = polls
        self.batches: dict[str, dict[str, Any]] = {}
        self.asked: Counter[str] = Counter()
        self.submitted: Counter[str] = Counter()
        self.losing: list[str] = []
        self.refusing = 0  # so many creates are refused with 429
        self.hidden = 0  # so many lists don't have the newest batch yet
        self.expiring: set[str] = set()  # batches that expire with half of their answers
        self.calls: list[str] = []

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        what = self.name_of(path, body)
        self.calls.append(what)
        if what == "create" and self.refusing:
            self.refusing -= 1
            return 429, {"Retry-After": "0"}, b"{}"
        made = self.made(what, path, headers, body)
        if what in self.losing:
            self.losing.remove(what)
            return 0, {}, b""
        if isinstance(made, bytes):
            return 200, {}, made
        return (404, {}, b"{}") if made is None else (200, {}, json.dumps(made).encode())

    def name_of(self, path: str, body: bytes) -> str:
        raise NotImplementedError

    def made(self, what: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        raise NotImplementedError

    def judged(self, id: str, requests: list[dict[str, Any]], field: str) -> list[Any]:
        """Return key, status and answer of each request: later ones first, as order is not kept."""
        found = []
        for request in requests:
            text = json.dumps(request[field], sort_keys=True)
            status, said = self.judge(request[field], self.asked[text])
            self.asked[text] += 1
            found.append((request["custom_id"], status, said))
        return found[::-1]

    def newest(self) -> list[dict[str, Any]]:
        listed = list(self.batches.values())[::-1]
        if self.hidden:
            self.hidden -= 1
            return listed[1:]
        return listed


class OpenAI(_Fake):
    """Speaks ``/v1/files`` and ``/v1/batches``."""

    def __init__(self, judge: Judge, *, polls: int = 1) -> None:
        super().__init__(judge, polls=polls)
        self.files: dict[str, bytes] = {}
        self.full = 0  # so many batches fail as too many tokens are under way

    def name_of(self, path: str, body: bytes) -> str:
        if path.startswith("/v1/files"):
            return "upload" if body else "file"
        if body:
            return "create"
        return "list" if path.partition("?")[0] == "/v1/batches" else "poll"

    def made(self, what: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        assert headers["authorization"] == "Bearer key"
        if what == "upload":
            return self._upload(headers, body)
        if what == "file":
            return self.files[path.split("/")[3]]
        if what == "create":
            return self._shown(self._created(json.loads(body)))
        if what == "list":
            return {"data": [self._shown(one) for one in self.newest()], "has_more": False}
        batch = self.batches[path.rpartition("/")[2]]
        batch["polls"] += 1
        if batch["polls"] > self.polls and batch["status"] == "in_progress":
            self._end(batch)
        return self._shown(batch)

    def _upload(self, headers: dict[str, str], body: bytes) -> dict[str, Any]:
        found = _BOUNDARY.search(headers["content-type"])
        assert found is not None
        parts = body.split(b"--" + found[1].encode())
        assert b'name="purpose"\r\n\r\nbatch\r\n' in parts[1]
        content = parts[2].partition(b"\r\n\r\n")[2]
        assert len(content) <= 200 << 20
        return self._file(content.rstrip(b"\r\n"))

    def _file(self, content: bytes) -> dict[str, Any]:
        id = f"file-{len(self.files)}"
        self.files[id] = content
        return {"id": id}

    def _created(self, wanted: dict[str, Any]) -> dict[str, Any]:
        lines = [json.loads(line) for line in self.files[wanted["input_file_id"]].splitlines()]
        assert wanted["completion_window"] == "24h" and len(lines) <= 50_000
        assert all((one["method"], one["url"]) == ("POST", wanted["endpoint"]) for one in lines)
        assert len({one["custom_id"] for one in lines}) == len(lines)
        self.submitted.update(json.dumps(one["body"]) for one in lines)
        id = f"batch_{len(self.batches)}"
        batch = {"id": id, "polls": 0, "lines": lines, "metadata": wanted["metadata"]}
        batch |= {"status": "in_progress", "created_at": int(time.time()), "errors": None}
        if self.full:
            self.full -= 1
            said = [{"code": "token_limit_exceeded", "message": "too many enqueued tokens"}]
            batch |= {"status": "failed", "errors": {"data": said}}
        self.batches[id] = batch
        return batch

    def _end(self, batch: dict[str, Any]) -> None:
        lines, id = batch["lines"], batch["id"]
        late = lines[len(lines) // 2 :] if id in self.expiring else []
        good, bad = [], []
        for key, status, said in self.judged(id, lines[: len(lines) - len(late)], "body"):
            response = {"status_code": status, "body": said if status < 400 else {"error": said}}
            line = {"custom_id": key, "response": response, "error": None}
            (good if status < 400 else bad).append(line)
        for one in late:
            said = {"code": "batch_expired", "message": "not done in time"}
            bad.append({"custom_id": one["custom_id"], "response": None, "error": said})
        batch["status"] = "expired" if late else "completed"
        for field, found in (("output_file_id", good), ("error_file_id", bad)):
            text = b"\n".join(json.dumps(line).encode() for line in found)
            batch[field] = self._file(text)["id"] if found else None

    def _shown(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in batch.items() if key not in ("lines", "polls")}


class Anthropic(_Fake):
    """Speaks ``/v1/messages/batches``."""

    def name_of(self, path: str, body: bytes) -> str:
        if body:
            return "create"
        if path.endswith("/results"):
            return "file"
        return "list" if path.partition("?")[0] == "/v1/messages/batches" else "poll"

    def made(self, what: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        assert (headers["x-api-key"], headers["anthropic-version"]) == ("key", "2023-06-01")
        if what == "create":
            return self._created(json.loads(body)["requests"])
        if what == "list":
            listed = self.newest()
            for batch in listed:
                self._pass_time(batch)
            return {"data": [self._shown(one) for one in listed], "has_more": False}
        batch = self.batches[path.split("/")[4]]
        if what == "file":
            return b"\n".join(json.dumps(line).encode() for line in batch["results"])
        self._pass_time(batch)
        return self._shown(batch)

    def _pass_time(self, batch: dict[str, Any]) -> None:
        batch["polls"] += 1
        if batch["polls"] > self.polls:
            self._end(batch["id"])

    def _created(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", one["custom_id"]) for one in requests)
        assert len({one["custom_id"] for one in requests}) == len(requests) <= 100_000
        self.submitted.update(json.dumps(one["params"]) for one in requests)
        id = f"msgbatch_{len(self.batches)}"
        now = datetime.now(timezone.utc).isoformat()
        self.batches[id] = {"id": id, "polls": 0, "requests": requests, "created_at": now}
        return self._shown(self.batches[id])

    def _end(self, id: str) -> None:
        batch = self.batches[id]
        if "results" in batch:
            return
        requests = batch["requests"]
        late = requests[len(requests) // 2 :] if id in self.expiring else []
        batch["results"] = []
        for key, status, said in self.judged(id, requests[: len(requests) - len(late)], "params"):
            result = {"type": "succeeded", "message": said}
            if status >= 400:
                result = {"type": "errored", "error": {"type": "error", "error": said}}
            batch["results"].append({"custom_id": key, "result": result})
        batch["results"] += [
            {"custom_id": one["custom_id"], "result": {"type": "expired"}} for one in late
        ]

    def _shown(self, batch: dict[str, Any]) -> dict[str, Any]:
        has_ended = "results" in batch
        counts = {"processing": 0, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
        counts["succeeded" if has_ended else "processing"] = len(batch["requests"])
        return {
            "id": batch["id"],
            "created_at": batch["created_at"],
            "processing_status": "ended" if has_ended else "in_progress",
            "request_counts": counts,
            "results_url": "http://elsewhere.invalid/results" if has_ended else None,
        }
