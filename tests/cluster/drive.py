"""One job on the cluster: its driver, what its bolts began, and whether the sink is exact."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.network import Host
from tests.cluster.services import START_TIMEOUT_S, Postgres, Spark, Valkey, python_of, until

# Partitions, unless there are more bolts: one that writes holds the sink's lock of its partition.
FILES = 8
RUN_TIMEOUT_S = 400  # a run takes some 40 s; on a machine that others load, far longer

# Runs on a host, as the sink can only be reached from there.
_COUNT = """
import json, sys, psycopg
with psycopg.connect(sys.argv[1]) as connection:
    rows = connection.execute("SELECT line, text FROM lines WHERE job = %s", (sys.argv[2],))
    print(json.dumps(rows.fetchall()))
"""

# Lines of the driver's that explain why a tuple went to another bolt.
_OF_BOLTS = re.compile(r"heartbeat|expired|lost|down|left|decommission|restart|reached")


class Began(NamedTuple):
    """A tuple that a bolt began at ``at_s`` (CLOCK_MONOTONIC)."""

    at_s: float
    epoch: int
    bolt: str
    host: str
    lines: tuple[int, ...]


class Cluster(NamedTuple):
    """All that a scenario needs."""

    folder: Path
    hosts: dict[str, Host]
    spark: Spark
    valkey: Valkey
    postgres: Postgres


class Drive:
    """A driver on host d with a job of ``lines`` lines; started again with the same arguments.

    ``padding`` makes each line so much longer; ``job_file`` is where the driver finds its job.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        lines: int = 1500,
        record_s: float = 0.02,
        bolts: int | str = 4,
        options: Sequence[str] = (),
        job: str = "job.py",
        padding: int = 0,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.lines = lines
        self._options = options
        self._files = max(FILES, bolts) if isinstance(bolts, int) else FILES
        self._padding = " " + "x" * padding if padding else ""
        self._driver: subprocess.Popen[bytes] | None = None
        self._host = cluster.hosts["d"]
        self._notes = cluster.folder / f"{name}-notes"
        self._notes.mkdir()
        self._write_lines()
        self.environment = cluster.spark.environment(self._host) | {
            "JOB": name,
            "LINES": str(self._host.node / f"{name}-*.log"),
            "NOTES": str(self._notes),
            "RECORD_S": str(record_s),
            "BOLTS": str(bolts),
            "REDIS": cluster.valkey.url,
            "SINK": cluster.postgres.url,
            "CLUSTER_MASTER": cluster.spark.master,  # Spark itself reads MASTER
            "FLOWCTL_DEBUG": "1",
        }
        self._told = self._host.node / f"{name}.told"
        self.job_file = self._host.node / f"{name}_job.py"
        self.job_file.write_text(Path(__file__).with_name(job).read_text(encoding="utf-8"))

    def _line(self, number: int) -> str:
        return f"line {number} of {self.name}{self._padding}"

    def twin(self, host: Host) -> Drive:
        """The same job with a driver on another host."""
        other = copy.copy(self)
        other._driver, other._host = None, host
        other.environment = self.environment | self.cluster.spark.environment(host)
        other.job_file = host.node / self.job_file.name
        other.job_file.write_text(self.job_file.read_text(encoding="utf-8"))
        return other

    def _write_lines(self) -> None:
        for file in range(self._files):
            numbers = range(file + 1, self.lines + 1, self._files)
            text = "".join(f"{self._line(n)}\n" for n in numbers)
            (self._host.node / f"{self.name}-{file}.log").write_text(text)

    @property
    def report_path(self) -> Path:
        """Where the driver leaves its report."""
        return self._host.node / f"{self.name}.json"

    def log(self) -> str:
        """What the driver has said so far."""
        path = self._host.node / f"{self.name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> Drive:
        """Start the driver."""
        command = ["run", self.job_file.name, "--master", self.cluster.spark.master, "--plain"]
        command += self._host.options
        return self.start_command([*command, "--report", str(self.report_path), *self._options])

    def start_command(self, words: Sequence[str]) -> Drive:
        """Start flowctl with these arguments as the driver."""
        return self.start_program(["-m", "flowctl.cli.main", *words])

    def start_program(self, words: Sequence[str]) -> Drive:
        """Start Python with these arguments as the driver."""
        log, argv = f"{self.name}.out", [python_of(self._host), *words]
        self._driver = self._host.start(argv, log=log, env=self.environment)
        return self

    def start_as(self, program: str) -> Drive:
        """Start the job as a program with a Spark session of its own."""
        self.environment |= {"PROGRAM": program, "TOLD": str(self._told)}
        return self.start_program([self.job_file.name])

    def told(self) -> Any:
        """What the program told at its end."""
        return json.loads(self._told.read_text(encoding="ascii"))

    def doctor(self, *options: str) -> tuple[int, str]:
        """Run `flowctl doctor --spark` on the driver's host; return exit code and output."""
        command = ["doctor", "--spark", "--master", self.cluster.spark.master]
        command += ["--redis", self.cluster.valkey.url, "--sink", self.cluster.postgres.url]
        command += ["--timeout", str(START_TIMEOUT_S)]
        return self.start_command([*command, *options, self.job_file.name]).wait(), self.log()

    def first_begun_by(self, host: str) -> bool:
        """Whether a bolt on ``host`` has begun anything."""
        return any(began.host == host for began in self.began())

    def kill(self) -> None:
        """SIGKILL the driver and its JVM."""
        assert self._driver is not None
        _kill_children(self._driver.pid)
        self._driver.kill()
        self._driver.wait()

    def wait(self, timeout_s: float = RUN_TIMEOUT_S) -> int:
        """Return the driver's exit code."""
        assert self._driver is not None
        return self._driver.wait(timeout_s)

    def is_over(self) -> bool:
        """Whether the driver has ended."""
        return self._driver is None or self._driver.poll() is not None

    def until_done(self, share: float) -> None:
        """Wait until bolts have begun this share of the lines."""
        wanted = share * self.lines

        def is_so() -> bool:
            if self.is_over():
                raise RuntimeError(f"{self.name} ended early: {self.log()[-2000:]}")
            return len({line for began in self.began() for line in began.lines}) >= wanted

        until(is_so, f"{share:.0%} of {self.name} begun\n{self.log()[-1500:]}", RUN_TIMEOUT_S)

    # -- what happened ---------------------------------------------------------------------

    def began(self) -> list[Began]:
        """All tuples that were begun, oldest first."""
        found = []
        for path in self._notes.iterdir():
            for line in path.read_text(encoding="ascii").splitlines():
                at, epoch, bolt, host, lines = line.split(" ")
                numbers = tuple(json.loads(lines))
                found.append(Began(float(at), int(epoch), bolt, host, numbers))
        return sorted(found)

    def reruns(self, since_s: float = 0.0) -> int:
        """How often a record was begun again, since then."""
        return _reruns(self.began(), since_s)

    def again(self) -> str:
        """Who began records that had been begun before, and what the driver said of bolts then."""
        began, seen, told = self.began(), dict[int, Began](), []
        for each in began:
            for first in {seen[line] for line in each.lines if line in seen}:
                told.append(f"{_who(first, began[0])}, then {_who(each, began[0])}")
            seen.update(dict.fromkeys(each.lines, each))
        said = [line for line in self.log().splitlines() if _OF_BOLTS.search(line)]
        return "\n".join(["begun twice:", *told, *(line[:200] for line in said[-20:])])

    def elsewhere_s(self, host: str, since_s: float) -> float | None:
        """How long after ``since_s`` a record that ``host`` had begun was begun on another.

        Also one that it began later, out of its queue, while it was cut off.
        """
        held: set[int] = set()
        for each in self.began():
            if each.host == host:
                held.update(each.lines)
            elif each.at_s > since_s and not held.isdisjoint(each.lines):
                return each.at_s - since_s
        return None

    def stalled_s(self, since_s: float) -> float:
        """The longest time after ``since_s`` in which no bolt began anything."""
        times = [since_s, *(b.at_s for b in self.began() if b.at_s > since_s)]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def sink(self) -> tuple[int, int, int]:
        """Compare the sink with the input: lost, doubled, and wrong records."""
        text = self._host.run(
            python_of(self._host), "-c", _COUNT, self.cluster.postgres.url, self.name
        )
        rows = [(line, text) for line, text in json.loads(text)]
        counted = Counter(line for line, _ in rows)
        lost = sum(1 for n in range(1, self.lines + 1) if n not in counted)
        doubled = sum(times - 1 for times in counted.values())
        wrong = sum(1 for line, text in rows if text != self._line(line))
        return lost, doubled, wrong

    def report(self) -> dict[str, Any]:
        """The driver's report."""
        found: dict[str, Any] = json.loads(self.report_path.read_text())
        return found


def _who(began: Began, first: Began) -> str:
    at_s = began.at_s - first.at_s
    return f"{len(began.lines)} records by {began.bolt} on {began.host} at {at_s:.1f} s"


def _reruns(began: Iterable[Began], since_s: float) -> int:
    """``began``: the oldest first."""
    seen: set[int] = set()
    again = 0
    for each in began:
        again += len(seen.intersection(each.lines)) if each.at_s >= since_s else 0
        seen.update(each.lines)
    return again


def _kill_children(pid: int) -> None:
    """SIGKILL the processes that ``pid`` started (Spark's JVM), not itself."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            _kill_children(int(status.parent.name))
            subprocess.run(["kill", "-9", status.parent.name], check=False, capture_output=True)


def now_s() -> float:
    """The clock of :class:`Began`."""
    return time.monotonic()
