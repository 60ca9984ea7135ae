"""The first screen of the README, followed as it is printed, in an empty directory."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(marker: str) -> str:
    """The block of code below ``<!-- marker: … -->``."""
    found = re.search(rf"^<!-- {marker}: .*? -->\n```\w*\n(.*?)^```$", README, re.M | re.S)
    assert found is not None, f"README.md has no block marked {marker}"
    return found[1]


def environment(home: Path) -> dict[str, str]:
    """As outside any virtual environment, but with pip's settings; ``flowctl`` is not on PATH."""
    kept = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.endswith("_PROXY")}
    programs = [f"{sys.base_prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"]
    return {**kept, "HOME": str(home), "PATH": os.pathsep.join(programs)}


def follow(commands: str, place: Path) -> str:
    """Run the lines as one who copies them does; return what they print."""
    done = subprocess.run(
        ["bash", "-e"],
        input=commands,
        cwd=place,
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _cpu_s() -> float:
    """What ended children took: unlike the time that passed, the same on a busy machine."""
    return sum(os.times()[2:4])


@pytest.mark.on_change("readme")
@pytest.mark.slow
@pytest.mark.timeout(400)  # installs from wherever pip is told to, perhaps over a slow line
@pytest.mark.skipif(sys.platform == "win32", reason="not on Windows")
def test_the_first_screen_works_as_printed(tmp_path: Path) -> None:
    (tmp_path / "flowctl").symlink_to(ROOT)  # the checkout that the page speaks of
    began_s, before_s = time.monotonic(), _cpu_s()
    told = follow(block("try"), tmp_path)
    took_s, cpu_s = time.monotonic() - began_s, _cpu_s() - before_s
    print(f"to the first finished job: {took_s:.1f} s, of which {cpu_s:.1f} s of CPU")
    assert "EXACT  lost 0 · doubled in the sink 0 (checked)" in told

    (tmp_path / "demo" / "job.py").write_text(block("job"), encoding="utf-8")
    # The first run's exit code is 3, as the page says.
    run = re.sub(r" +#.*$", "", block("run"), flags=re.M)
    told = follow(re.sub(r"^(.*flowctl run.*)$", r"\1 || test $? = 3", run, flags=re.M), tmp_path)
    lines = sum(path.read_text().count("\n") for path in tmp_path.glob("demo/logs/*.log"))
    rejected = int(re.search(r"(\d+) records rejected and kept nowhere", told)[1])
    with sqlite3.connect(tmp_path / "demo" / "visits.db") as database:
        [(written,)] = database.execute("SELECT count(*) FROM visits")
    assert (written + rejected, rejected > 0) == (lines, True)
    assert f"nothing to do: all {lines:,} records were done before".replace(",", " ") in told
