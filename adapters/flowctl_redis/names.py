"""Names of jobs and partitions as bytes for Redis."""

from __future__ import annotations

import shlex


def to_bytes(text: str) -> bytes:
    """Return a name as bytes; surrogates, by which the OS gives names not in UTF-8, are kept."""
    return text.encode("utf-8", "surrogateescape")


def to_text(raw: bytes) -> str:
    """The inverse of :func:`to_bytes`."""
    return raw.decode("utf-8", "surrogateescape")


def clear_command(key: bytes) -> str:
    """Return the shell command that clears the job of ``key``."""
    job = to_text(key).partition("{")[2][:-1]
    return f"flowctl checkpoint clear {shlex.quote(job)}"
