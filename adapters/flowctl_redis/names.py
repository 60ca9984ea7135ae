"""Names of jobs and partitions as Redis' bytes."""

from __future__ import annotations

import shlex


def to_bytes(text: str) -> bytes:
    """Names as bytes; file names that are not UTF-8 come from the OS with surrogates and are
    preserved."""
    return text.encode("utf-8", "surrogateescape")


def to_text(raw: bytes) -> str:
    """The inverse of :func:`to_bytes`."""
    return raw.decode("utf-8", "surrogateescape")


def clear_command(key: bytes) -> str:
    """Return the command that clears the job of ``key``, as a shell takes it."""
    job = to_text(key).partition("{")[2][:-1]
    return f"flowctl checkpoint clear {shlex.quote(job)}"
