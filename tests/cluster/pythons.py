"""Workers whose Python is of another version than the driver's."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.drive import Cluster
from tests.cluster.parts import site_of

_VARIABLE = "FLOWCTL_OTHER_PYTHON"
_MINORS = range(11, 16)
_PRETENDED = "3.99"
# pyspark compares this, and nothing else.
_PRETENDS = """import sys
from collections import namedtuple
names = 'major minor micro releaselevel serial'
sys.version_info = namedtuple('version_info', names)(3, 99, 0, 'final', 0)
"""


@contextlib.contextmanager
def another_python(cluster: Cluster, *hosts: str) -> Iterator[str]:
    """Give ``hosts`` a Python of another version, and yield that ("3.13").

    A real one, if this machine has one: on the PATH, or what FLOWCTL_OTHER_PYTHON names.  Else
    their own says that it is 3.99 (see :func:`how`).
    """
    path, version = _other()
    with contextlib.ExitStack() as ends:
        for host in hosts:
            ends.enter_context(_replaced(cluster, host, path) if path else _faked(cluster, host))
        yield version


def how(version: str) -> str:
    """Say in a row whether that Python was real."""
    return (
        f"a real {version}"
        if version != _PRETENDED
        else f"{platform.python_version()} that says it is {version}"
    )


def _other() -> tuple[str, str]:
    """Where the first one is, and its version."""
    names = [os.environ.get(_VARIABLE, ""), *(f"python3.{minor}" for minor in _MINORS)]
    # Those of pyenv are not on the PATH: what is there in their place only says so.
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    names += (str(path) for n in _MINORS for path in pyenv.glob(f"3.{n}.*/bin/python3.{n}"))
    for path in filter(None, map(shutil.which, filter(None, names))):
        ask = [path, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        told = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
        if told and told != f"{sys.version_info[0]}.{sys.version_info[1]}":
            return path, told
    return "", _PRETENDED


@contextlib.contextmanager
def _replaced(cluster: Cluster, host: str, path: str) -> Iterator[None]:
    """In the place of its ``bin/python``; flowctl and Spark are those of the host."""
    node = cluster.hosts[host].node
    subprocess.run([path, "-m", "venv", "--without-pip", node / "other"], check=True)
    [site] = (node / "other").glob("lib/python*/site-packages")
    seen_as = cluster.folder / "node"  # as its programs see their host's own files
    own = seen_as / site_of(cluster, host).relative_to(node)
    (site / "own.pth").write_text(f"{own}\n{(site_of(cluster, host) / 'needs.pth').read_text()}")
    python = node / "bin" / "python"
    python.rename(kept := node / "bin" / "python.own")
    python.write_text(f'#!/bin/sh\nexec {seen_as}/other/bin/python "$@"\n')
    python.chmod(0o755)
    try:
        yield
    finally:
        kept.replace(python)
        shutil.rmtree(node / "other")


@contextlib.contextmanager
def _faked(cluster: Cluster, host: str) -> Iterator[None]:
    file: Path = site_of(cluster, host) / "sitecustomize.py"
    file.write_text(_PRETENDS)
    try:
        yield
    finally:
        file.unlink()
