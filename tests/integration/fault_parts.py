"""What the fault tests share: input, its comparison with SQLite, drivers and servers to kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import flowctl
from flowctl.errors import EXIT_FINISHED
from flowctl_redis.embedded import find_binary

ROOT = Path(__file__).resolve().parents[2]
JOB_FILE = Path(__file__).parent / "jobs" / "lines.py"
PACKAGE = f"{Path(flowctl.__file__).parent}/"
# Both as pyspark_flowctl.session has them.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
OUR_DAEMON = ("spark.python.daemon.module", "pyspark_flowctl.daemon")
PATIENCE_S = 120.0  # a loaded machine with a cold Spark still ends; only a hang takes this long


def until(done: Callable[[], Any], what: str = "it", *, patience_s: float = PATIENCE_S) -> Any:
    """Poll until ``done()`` is true and return it; fail when it takes too long."""
    deadline_s = time.monotonic() + patience_s
    while not (found := done()):
        assert time.monotonic() < deadline_s, f"waited too long for {what}"
        time.sleep(0.01)
    return found


def run_as_program(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a test's own file as a program that says "fine" at its end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, path, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("fine\n"), done.stdout + done.stderr
    return done


def write_lines(path: Path, count: int, *, poison: int = 0) -> Path:
    """Write numbered lines of various lengths; line ``poison`` holds that word."""
    words = ("", " ä", " and some more text", " x" * 40)
    lines = (
        f"{n}{words[n % len(words)]}{' poison' if n == poison else ''}\n"
        for n in range(1, count + 1)
    )
    path.write_text("".join(lines), encoding="utf-8")
    return path


def expected(*files: Path) -> Iterator[tuple[str, int, str]]:
    """What SQLite should hold, read without flowctl."""
    for path in sorted(files):
        text = path.read_bytes().decode("utf-8")
        for number, line in enumerate(text.split("\n")[:-1], start=1):
            yield str(path), number, line


def rows(database: Path) -> list[tuple[str, int, str]]:
    """All that SQLite holds; empty before the table is there."""
    if not database.exists():
        return []
    connection = sqlite3.connect(database, timeout=60)
    try:
        return connection.execute(
            "SELECT file, line, text FROM lines ORDER BY file, line"
        ).fetchall()
    except sqlite3.OperationalError as error:
        assert "no such table" in str(error), error
        return []
    finally:
        connection.close()


def count_rows(database: Path) -> int:
    """How many rows there are; quick, for polling."""
    if not database.exists():
        return 0
    connection = sqlite3.connect(database, timeout=60)
    try:
        return int(connection.execute("SELECT COUNT(*) FROM lines").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def assert_exact(database: Path, *files: Path) -> None:
    """SQLite holds each line of ``files`` exactly once, with its number and text."""
    wanted = list(expected(*files))
    found = rows(database)
    if found != wanted:
        lost = sorted(set(wanted) - set(found))[:3]
        strange = sorted(set(found) - set(wanted))[:3]
        raise AssertionError(
            f"{len(found)} rows, {len(set(found))} of them different, for {len(wanted)} lines;"
            f" lost {lost}, strange {strange}"
        )


class Job:
    """``flowctl run jobs/lines.py`` in a directory of its own: input, SQLite, environment."""

    def __init__(self, place: Path, lines: int, *, poison: int = 0, **environment: object) -> None:
        self.place = place
        self.input = write_lines(place / "in.log", lines, poison=poison)
        self.database = place / "out.db"
        self.report_path = place / "report.json"
        self.environment = {
            "PLACE": str(place),
            "LOGS": str(self.input),
            "DATABASE": str(self.database),
            **{name: str(value) for name, value in environment.items()},
        }

    def start(self, *arguments: str, **environment: object) -> Driver:
        """Start a driver; ``environment`` changes the job's for this run."""
        return Driver(self, arguments, {k: str(v) for k, v in environment.items()})

    def run(self, *arguments: str, **environment: object) -> Driver:
        """Start a driver and wait for its end."""
        driver = self.start(*arguments, **environment)
        driver.wait()
        return driver

    def finish(self, *arguments: str, **environment: object) -> Driver:
        """As :meth:`run`; the driver must succeed and leave SQLite exact."""
        driver = self.run(*arguments, **environment)
        assert driver.code == EXIT_FINISHED, driver.said
        self.assert_exact()
        return driver

    def assert_exact(self) -> None:
        assert_exact(self.database, self.input)

    def until_rows(self, count: int, driver: Driver) -> None:
        """Wait until SQLite holds ``count`` rows while ``driver`` works."""

        def there() -> bool:
            assert driver.process.poll() is None, driver.said
            return count_rows(self.database) >= count

        until(there, f"{count} rows")


class Driver:
    """One process of ``flowctl run``, in a session of its own, as a terminal's job would be."""

    _runs = 0

    def __init__(self, job: Job, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        Driver._runs += 1
        self._job = job
        self._output = job.place / f"driver-{Driver._runs}.txt"
        path = os.pathsep.join([str(ROOT), str(ROOT / "adapters")])
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLOWCTL", "COLUMNS"))}
        command = [sys.executable, "-m", "flowctl.cli.main", "run", f"{JOB_FILE}:spout"]
        # TUPLE_S is paid per tuple: sizes of their own would hurry past what a test waits for.
        command += ["--set", "tuple.records_max=200"]
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, "--report", str(job.report_path), *arguments],
                cwd=job.place,
                env={**kept, "PYTHONPATH": path, **job.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        return self.process.returncode

    @property
    def said(self) -> str:
        return self._output.read_text()

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self._job.report_path.read_text())
        return report

    def wait(self) -> int:
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the driver hangs; it said:\n{self.said}") from None

    def until_said(self, text: str) -> None:
        def there() -> bool:
            assert self.process.poll() is None or text in self.said, self.said
            return text in self.said

        until(there, repr(text))

    def press_ctrl_c(self) -> None:
        """SIGINT to all processes of the terminal's job, as the terminal sends it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def assert_failed(self, code: int, *words: str) -> None:
        """It ended with ``code`` and said ``words``; frames shown are the job's, not ours."""
        said = self.said
        assert self.code == code, said
        for word in words:
            assert word in said, f"{word!r} is not in:\n{said}"
        # The checkout may be called flowctl too, so the whole path of the package counts.
        assert PACKAGE not in said, said


class Valkey:
    """A server on a TCP port, which can be killed and come back with its data."""

    def __init__(self, place: Path, port: int) -> None:
        self._place = place
        self._port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        binary = find_binary()
        assert binary is not None
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self._process = subprocess.Popen(
            [binary, "--port", str(self._port), "--dir", str(self._place), *durable, *options],
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        client = self.client()
        until(lambda: _answers(client), "valkey")
        client.close()

    def client(self) -> Any:
        return redis.Redis(port=self._port, retry=Retry(NoBackoff(), 0))

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It stands still meanwhile, as its connections do."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _answers(client: Any) -> bool:
    try:
        client.ping()
    except redis.AuthenticationError:
        return True
    except redis.RedisError:
        return False
    return True
