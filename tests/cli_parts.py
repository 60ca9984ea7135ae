"""The command line in this process: a program for each message takes a third of a second."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from flowctl.cli.main import main


class Said(NamedTuple):
    """What a command ended with and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def flowctl_here(place: Path, *arguments: str, environment: Mapping[str, str] = {}) -> Said:
    """Run ``flowctl ARGUMENTS`` in the directory ``place``.

    For what starts no run of its own: that would leave threads and the logs' configuration behind.
    """
    out, err = io.StringIO(), io.StringIO()
    before, path, modules = Path.cwd(), sys.path[:], set(sys.modules)
    os.chdir(place)
    try:
        with patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err):
            code = main(arguments)
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in sys.modules.keys() - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and (Path(file).parent == place or any(file in word for word in arguments)):
                del sys.modules[name]  # the next job.py is another one
    return Said(code, out.getvalue(), err.getvalue())
