"""The Lua scripts, read from the package and sent with each call.

EVAL rather than EVALSHA: 2 kB a call are negligible, the server compiles a text only once, and
there is no NOSCRIPT to handle after a restart, a failover or a SCRIPT FLUSH.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any


@cache
def source(name: str) -> str:
    """Return the text of script ``name``, with the common part before it."""
    folder = resources.files("flowctl_redis") / "lua"
    return "\n".join(
        (folder / part).read_text(encoding="utf-8") for part in ("common.lua", f"{name}.lua")
    )


def run(client: Any, name: str, key: bytes, arguments: list[bytes]) -> list[bytes]:
    """Run a script on one key; it returns an array of byte strings, the first one its status."""
    return list(client.eval(source(name), 1, key, *arguments))
