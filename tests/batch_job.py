"""Rows asked of a batch API: ``python -m tests.batch_job KIND URL INPUT OUT STEP``.

The process kills itself at the second batch, at STEP ("": nowhere).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pyarrow

from flowctl_apply import _asking, apply_parquet
from flowctl_http import AnthropicBatch, OpenAIBatch

STEPS = ("noted", "before submit", "submitted", "polling", "read", "written")


def of_row(row: Any) -> dict[str, Any]:
    """Return a request, for either service."""
    content = [{"role": "user", "content": row["text"]}]
    return {"model": "small", "max_tokens": 10, "messages": content}


def in_openai(row: Any, body: Any) -> tuple[int, str]:
    """Return the answer's row."""
    return row["id"], body["choices"][0]["message"]["content"]


def in_anthropic(row: Any, body: Any) -> tuple[int, str]:
    """Return the answer's row."""
    return row["id"], body["content"][0]["text"]


def api_of(kind: str, url: str, **given: Any) -> Any:
    """Return the batch API of this kind at ``url``."""
    given = {"url": url, "rows_max": 300, "poll_s": 0.01, "settle_s": 0.2, **given}
    if kind == "openai":
        headers = {"Authorization": "Bearer key"}
        return OpenAIBatch(of_row, in_openai, headers=headers, **given)
    return AnthropicBatch(of_row, in_anthropic, headers={"x-api-key": "key"}, **given)


def kill_at(step: str, api: Any) -> None:
    """Have this process kill itself at the second call of ``step``."""
    place, name = {
        "noted": (_asking.Asking, "_submit"),
        "before submit": (type(api), "submit"),
        "submitted": (type(api), "submit"),
        "polling": (type(api), "poll"),
        "read": (type(api), "fetch"),
        "written": (_asking, "write_answers"),
    }[step]
    whole, calls = getattr(place, name), iter(range(1_000))

    def killed(*given: Any, **named: Any) -> Any:
        is_last = next(calls) == 1
        if is_last and step in ("noted", "before submit"):
            os.kill(os.getpid(), signal.SIGKILL)
        made = whole(*given, **named)
        if is_last:
            list(made if step == "read" else ())
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    setattr(place, name, killed)


if __name__ == "__main__":
    kind, url, source, out, step = sys.argv[1:]
    api = api_of(kind, url)
    if step:
        kill_at(step, api)
    schema = pyarrow.schema([("id", pyarrow.int64()), ("label", pyarrow.string())])
    made = apply_parquet(source, api, schema=schema, name="labels", out=out, bolts=2, view="plain")
    print(f"was done: {made.was_done}, {made.rows} rows")
