"""Types that msgspec converts to, prepared before there are threads."""

from __future__ import annotations

from typing import Any

import msgspec


def prepare(*types: Any) -> None:
    """Let msgspec analyse ``types``.  Call it where they are defined or imported.

    Otherwise it does so at their first use, and if two threads use a type for the first time at
    once, one of them finds it half analysed, and the process dies with SIGSEGV (msgspec 0.20 and
    0.21): two runs that begin in threads, or the bolts of one run, in their threads.  An import is
    one thread.
    """
    for each in types:
        msgspec.msgpack.Decoder(each)
