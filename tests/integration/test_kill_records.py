"""Each run lists what is still to do, and one of them is killed in mid-run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowctl_redis import RedisCheckpointStore
from flowctl_redis.embedded import EmbeddedServer

JOB = """
import time
from pathlib import Path
from flowctl import FlowControlSpout, LocalBolts
from flowctl_redis import RedisCheckpointStore

todo = Path("todo")

def finish(batch):
    for record in batch:
        time.sleep(0.005)
        (todo / record.value).unlink()

still_to_do = sorted(path.name for path in todo.iterdir())
spout = FlowControlSpout(name="todo", producer=still_to_do, bolts=LocalBolts(finish, count=2))
"""
VALUES = 1_000


def run(directory: Path, url: str) -> subprocess.Popen[str]:
    # No copies: what a copy wants to remove is gone already.
    wanted = ("tuple.records_max=10", "checkpoint.interval_s=0.05", "hedge.enabled=false")
    settings = [word for setting in wanted for word in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, "-m", "flowctl", "run", "--plain", *settings, "job.py"],
        cwd=directory,
        env=os.environ | {"FLOWCTL_REDIS_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.req("S117")
def test_a_list_of_what_is_still_to_do_is_refused_after_a_kill(tmp_path: Path) -> None:
    """Its first values would count as done, as they stand where others were."""
    (tmp_path / "todo").mkdir()
    for number in range(VALUES):
        (tmp_path / "todo" / f"{number:04}").touch()
    (tmp_path / "job.py").write_text(JOB)
    server = EmbeddedServer(tmp_path / "redis")
    url = server.start()
    store = RedisCheckpointStore(url)
    try:
        first = run(tmp_path, url)
        while store.load("todo").records < VALUES // 10 and first.poll() is None:
            time.sleep(0.01)
        first.kill()
        assert first.wait() == -signal.SIGKILL, first.communicate()[0]
        left = sorted(os.listdir(tmp_path / "todo"))
        assert 0 < len(left) < VALUES
        said, _ = (second := run(tmp_path, url)).communicate()
        assert second.returncode == 1, said
        assert f"{VALUES}" in said, said
        assert "flowctl checkpoint clear" in said
        assert sorted(os.listdir(tmp_path / "todo")) == left, "it ran with a list that it refused"
        store.clear("todo")
        said, _ = (third := run(tmp_path, url)).communicate()
        assert third.returncode == 0, said
        assert not os.listdir(tmp_path / "todo")
    finally:
        store.close()
        server.stop()
