"""A helper process: told what to be by one JSON argument, tells its port, ends with its input."""

from __future__ import annotations

import subprocess
import sys

import msgspec

_END_PATIENCE_S = 5.0  # it only has to return from one select


class Child:
    """``python -m module SPEC``; ``port`` is what it listens on."""

    def __init__(self, module: str, spec: msgspec.Struct) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, msgspec.json.encode(spec).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        """End it; kill it if it does not."""
        try:
            self._process.communicate(timeout=_END_PATIENCE_S)  # closes its input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
