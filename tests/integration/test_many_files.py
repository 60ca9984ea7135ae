"""Many small files: killed in the middle of saves, nothing is called done that is not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowctl.core.records import Checkpoint
from flowctl_redis import RedisCheckpointStore
from flowctl_redis.embedded import EmbeddedServer

FILES, LINES = 1_500, 3
_JOB = Path(__file__).parent / "jobs" / "many_files.py"


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    server = EmbeddedServer(tmp_path / "redis")
    yield server.start()
    server.stop()


def saved(url: str) -> Checkpoint:
    store = RedisCheckpointStore(url)
    try:
        return store.load("many")
    finally:
        store.close()


@pytest.mark.req("S13", "S117")
def test_killed_in_the_middle_of_saves(tmp_path: Path, redis_url: str) -> None:
    folder, journal = tmp_path / "in", tmp_path / "journal"
    folder.mkdir()
    for number in range(FILES):
        text = "".join(f"line {line}\n" for line in range(LINES))
        (folder / f"{number:05}.txt").write_text(text)

    def run(save: int, moment: str) -> int:
        arguments = [str(folder), redis_url, str(journal), str(save), moment]
        return subprocess.run([sys.executable, str(_JOB), *arguments], check=False).returncode

    before = kills = 0
    for save, moment in ((1, "before"), (1, "within"), (2, "after"), (1, "after")):
        code = run(save, moment)
        if code == 0:
            continue  # a fast machine: so many saves were not needed
        assert code == -signal.SIGKILL
        kills += 1
        processed = Counter(line.split()[0] for line in set(journal.read_text().splitlines()))
        checkpoint = saved(redis_url)
        for name, state in checkpoint.partitions.items():
            assert state.records_done <= processed[Path(name).name]
            assert state.end is None or state.records == LINES
        assert checkpoint.records >= before, "a kill takes nothing back"
        before = checkpoint.records
    assert kills >= 2
    assert run(0, "") == 0
    assert len(set(journal.read_text().splitlines())) == FILES * LINES
    whole = saved(redis_url)
    assert whole.records == FILES * LINES
    assert all(state.end is not None for state in whole.partitions.values())
    written = journal.stat().st_size
    assert run(1, "before") == 0, "nothing to do, so nothing to save"
    assert journal.stat().st_size == written
