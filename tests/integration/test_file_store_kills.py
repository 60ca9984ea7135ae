"""Drivers over one directory of checkpoints, as processes: killed, and several at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from fault_parts import until

from flowctl import FileCheckpointStore
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import CheckpointUnavailableError

# Takes the job and saves on; says its epoch, then each position once it is confirmed.
_DRIVER = """
import itertools, os, sys
from flowctl import Checkpoint, FencedError, FileCheckpointStore, PartitionCheckpoint
store, name = FileCheckpointStore(sys.argv[1]), sys.argv[2]
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
    for position in itertools.count(start + 1):
        state = PartitionCheckpoint(position, position)
        store.save("job", Checkpoint({name: state, "all": state}), epoch=epoch)
        print(position, flush=True)
        if "stepwise" in sys.argv:
            sys.stdin.readline()
except FencedError:
    print("fenced", flush=True)
"""


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
def driver(place: Path, name: str, *how: str) -> Iterator[Driver]:
    process = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, str(place), name, *how],
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
    names = ("a", "b", "c", "d")
    with ExitStack() as all_of_them:
        drivers = {name: all_of_them.enter_context(driver(tmp_path, name)) for name in names}
        for one in drivers.values():
            one.go_on()
        with ThreadPoolExecutor(len(names)) as threads:
            reading = {name: threads.submit(one.out.read) for name, one in drivers.items()}
            until(lambda: sum(read.done() for read in reading.values()) == len(names) - 1)
            for one in drivers.values():
                one.process.kill()  # the newest saves on until then
        said = {name: read.result().split() for name, read in reading.items()}
    epochs = {name: int(words[0]) for name, words in said.items()}
    newest = max(names, key=epochs.__getitem__)
    assert len(set(epochs.values())) == len(names)
    assert {name for name, words in said.items() if words[-1] != "fenced"} == {newest}
    store = FileCheckpointStore(tmp_path)
    assert store.inspect("job").epoch == epochs[newest]
    partitions = store.load("job").partitions
    for name in names:
        confirmed = [int(word) for word in said[name][1:] if word != "fenced"]
        if confirmed and name == newest:
            saved = partitions[name].position
            assert isinstance(saved, int) and saved >= confirmed[-1]
        elif confirmed:
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
