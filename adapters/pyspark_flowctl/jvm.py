"""Start the JVM of a session of our own so that what it prints can be shown properly."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from flowctl.instrumentation.text import printable_block

# The JVM itself says this at each start, about a module that Spark 4 always asks for.
_NOISE = ("WARNING: Using incubator modules",)


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the process-wide JVM unless there is one.

    Its stderr, which is also that of local Python workers, goes line by line to our
    ``sys.stderr``: a live view on the terminal can then print it above itself.
    """
    from pyspark import SparkConf, SparkContext, java_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    launcher: Any = java_gateway  # untyped
    gateway = launcher.launch_gateway(conf, popen_kwargs={"stderr": subprocess.PIPE})
    SparkContext._ensure_initialized(gateway=gateway)
    process: Any = getattr(gateway, "proc", None)  # none under spark-submit: not our child
    if process is not None and process.stderr is not None:
        threading.Thread(
            target=_show, args=(process.stderr,), name="flowctl-spark-stderr", daemon=True
        ).start()


def _show(lines: Iterable[bytes]) -> None:
    for line in lines:
        text = line.decode(errors="replace")
        if not text.startswith(_NOISE):
            # Read on without a stderr: the JVM would stand still at a full pipe.
            with suppress(OSError, ValueError):
                sys.stderr.write(printable_block(text, prefix="") + "\n")
