"""Drivers over one directory of checkpoints, as processes: killed, and several at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowctl import FileCheckpointStore
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import CheckpointUnavailableError

# Takes the job and saves on; says its epoch, then each position once it is confirmed.
_DRIVER = """
import os, sys
from flowctl import Checkpoint, FencedError, FileCheckpointStore, PartitionCheckpoint
store, name, saves = FileCheckpointStore(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
epoch = store.acquire("job")
print(epoch, flush=True)
start = max((p.position for p in store.load("job").partitions.values()), default=0)
if "freeze" in sys.argv:
    real = os.fsync
    def fsync(descriptor):
        print("saving", flush=True)
        sys.stdin.readline()
        real(descriptor)
    os.fsync = fsync
try:
    for position in range(start + 1, start + 1 + saves):
        state = PartitionCheckpoint(position, position)
        store.save("job", Checkpoint({name: state, "all": state}), epoch=epoch)
        print(position, flush=True)
        if "stepwise" in sys.argv:
            sys.stdin.readline()
except FencedError:
    print("fenced", flush=True)
"""
_FOREVER = 1 << 30


class Driver:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self._in, self.out = process, process.stdin, process.stdout
        assert self.read() == "ready"

    def read(self) -> str:
        return self.out.readline().strip()

    def go_on(self) -> None:
        self._in.write("\n")
        self._in.flush()

    def begin(self) -> int:
        """Let it take the job; return its epoch."""
        self.go_on()
        return int(self.read())


@contextmanager
def driver(place: Path, name: str, *how: str, saves: int = _FOREVER) -> Iterator[Driver]:
    process = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, str(place), name, str(saves), *how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield Driver(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.req("S13", "S117")
def test_a_kill_at_any_moment_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    chance, epochs, last = random.Random(7), [], 0
    for _ in range(12):
        with driver(tmp_path, "p") as one:
            epochs.append(one.begin())
            for _ in range(chance.randint(1, 30)):
                one.read()
            one.process.kill()  # in the middle of whatever it does
            said = one.out.read().split()
        confirmed = int(said[-1]) if said else 0
        found = FileCheckpointStore(tmp_path).load("job").partitions
        position = found["p"].position
        assert isinstance(position, int)
        # The one that was under way may be there too: as a whole.
        assert found == dict.fromkeys(("p", "all"), PartitionCheckpoint(position, position))
        assert last < position and confirmed <= position
        last = position
    assert epochs == sorted(set(epochs)), "each driver has a higher epoch than those before"


@pytest.mark.req("S13", "S117")
def test_of_drivers_that_begin_at_once_one_is_left_and_nothing_confirmed_is_lost(
    tmp_path: Path,
) -> None:
    saves, names = 60, ("a", "b", "c", "d")
    with (
        driver(tmp_path, "a", saves=saves) as a,
        driver(tmp_path, "b", saves=saves) as b,
        driver(tmp_path, "c", saves=saves) as c,
        driver(tmp_path, "d", saves=saves) as d,
    ):
        drivers = dict(zip(names, (a, b, c, d), strict=True))
        for one in drivers.values():
            one.go_on()
        said = {name: one.out.read().split() for name, one in drivers.items()}
    epochs = {name: int(words[0]) for name, words in said.items()}
    assert len(set(epochs.values())) == len(names)
    newest = max(names, key=epochs.__getitem__)
    store = FileCheckpointStore(tmp_path)
    assert store.inspect("job").epoch == epochs[newest]
    assert "fenced" not in said[newest] and len(said[newest]) == 1 + saves
    assert any("fenced" in words for words in said.values()), "they did not meet: shows nothing"
    partitions = store.load("job").partitions
    for name, words in said.items():
        confirmed = [int(word) for word in words[1:] if word != "fenced"]
        assert "fenced" in words or len(confirmed) == saves
        if confirmed:
            assert partitions[name] == PartitionCheckpoint(confirmed[-1], confirmed[-1])


@pytest.mark.req("S13")
def test_a_driver_that_sleeps_through_its_replacement_is_fenced(tmp_path: Path) -> None:
    with driver(tmp_path, "p", "stepwise") as old:
        old.begin()
        assert old.read() == "1"
        old.process.send_signal(signal.SIGSTOP)
        store = FileCheckpointStore(tmp_path)
        store.clear("job")
        store.save("job", Checkpoint({"p": PartitionCheckpoint(1, 1)}), epoch=store.acquire("job"))
        old.process.send_signal(signal.SIGCONT)
        old.go_on()
        assert old.read() == "fenced"
    assert FileCheckpointStore(tmp_path).load("job").partitions["p"] == PartitionCheckpoint(1, 1)


@pytest.mark.req("S13")
def test_one_that_is_frozen_in_a_save_is_named_and_one_that_is_killed_there_is_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowctl.runtime.file_store.LOCK_TIMEOUT_S", 0.1)
    with driver(tmp_path, "p", "freeze") as old:
        epoch = old.begin()
        assert old.read() == "saving"
        store = FileCheckpointStore(tmp_path)
        with pytest.raises(CheckpointUnavailableError, match=f"by process {old.process.pid}"):
            store.acquire("job")
        assert store.load("job") == Checkpoint()
        old.process.kill()
        old.process.wait()
        assert store.acquire("job") > epoch
