"""deploy/smoke.py says of each door whether it works here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOORS = 6

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.on_change("spark", "delivery", "apply"),
]


@pytest.mark.parametrize(
    "remote",
    [
        pytest.param("", id="classic"),
        pytest.param("local[2]", id="connect", marks=pytest.mark.long),  # a minute
    ],
)
def test_each_door_works(tmp_path: Path, remote: str) -> None:
    """The same program on a classic session and on a Connect server."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "FLOWCTL_SMOKE_REMOTE": remote}
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "smoke.py", tmp_path],
        cwd=tmp_path, env={**os.environ, **own}, text=True, check=False, capture_output=True,
    )  # fmt: skip
    assert len(re.findall("works  ", done.stdout)) == DOORS, done.stdout + done.stderr
    assert done.returncode == 0
