"""What scenarios share: their figures, and a run to which something is done."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tests.cluster.drive import Cluster, Drive, now_s
from tests.cluster.services import until


class Figures(NamedTuple):
    """What a scenario showed; ``problem``: what did not hold, "" if all did."""

    records: int
    rerun: int
    elsewhere_s: float | None = None
    stalled_s: float | None = None
    lost: int = 0
    doubled: int = 0
    problem: str = ""
    note: str = ""


#: The most seconds until what a worker held that is cut off goes on elsewhere, as was asked for.
ELSEWHERE_MOST_S = 2.0

_Scenario: TypeAlias = Callable[[Cluster, random.Random], Figures]
SCENARIOS: dict[str, _Scenario] = {}
#: Those that take longest by nature: they begin first, so that others run beside them.
LONG: set[str] = set()
#: What a scenario needs that only hosts in namespaces have.
NEEDS: dict[str, str] = {}
NAMES = "hosts with a name of their own"
LINKS = "links that can be cut"
PYTHONS = "hosts with a Python of their own"


def scenario(function: _Scenario) -> _Scenario:
    """Register a scenario under its name."""
    SCENARIOS[function.__name__] = function
    return function


def long(function: _Scenario) -> _Scenario:
    """Mark a scenario that takes long by nature, most of it asleep."""
    LONG.add(function.__name__)
    return function


def needs(what: str) -> Callable[[_Scenario], _Scenario]:
    """Mark a scenario that needs this of its hosts: on loopback addresses it is skipped."""

    def mark(function: _Scenario) -> _Scenario:
        NEEDS[function.__name__] = what
        return function

    return mark


def figures(drive: Drive, *, exit_code: int = 0, note: str = "") -> Figures:
    """Wait for the driver's end; count the sink record by record."""
    code = drive.wait()
    if code != exit_code:
        return Figures(drive.lines, drive.reruns(), problem=f"exit {code}: {drive.log()[-1500:]}")
    lost, doubled, wrong = drive.sink()
    problems = []
    if lost or doubled or wrong:
        problems.append(f"{lost} lost, {doubled} doubled, {wrong} wrong")
    told = "; ".join(problems)
    return Figures(drive.lines, drive.reruns(), lost=lost, doubled=doubled, problem=told, note=note)


class Fault:
    """A run, and when something was done to it."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.at_s = now_s()

    def figures(self, host: str | None = None) -> Figures:
        """As :func:`figures`, with how long what ``host`` held took to go on elsewhere."""
        found = figures(self.drive)
        found = found._replace(stalled_s=self.drive.stalled_s(self.at_s))
        if host is None:
            return found
        return found._replace(elsewhere_s=self.drive.elsewhere_s(host, self.at_s))

    def figures_of_cut(self, host: str) -> Figures:
        """As :meth:`figures`, with a gate: work goes on elsewhere within ``ELSEWHERE_MOST_S``."""
        found = self.figures(host)
        took_s = found.elsewhere_s
        if not found.problem and took_s is not None and took_s > ELSEWHERE_MOST_S:
            told = f"what it held went on after {took_s:.1f} s, not {ELSEWHERE_MOST_S:.0f} s"
            return found._replace(problem=f"exact, but {told}; {self.drive.again()}")
        return found


@contextlib.contextmanager
def started(
    cluster: Cluster, name: str, draw: random.Random, *, environment: Any = None, **options: Any
) -> Iterator[Fault]:
    """Start a run; give it back at a random moment of its first half."""
    drive = Drive(cluster, name, **options)
    drive.environment |= environment or {}
    drive.start()
    drive.until_done(draw.uniform(0.15, 0.4))
    until(lambda: drive.first_begun_by("w1"), "a bolt on w1 works")
    yield Fault(drive)


def cut(cluster: Cluster) -> float:
    """Cut w1 off; return when it was: the command takes a while, most of it to start."""
    cluster.hosts["w1"].cut()
    return now_s()


def kill_executors(cluster: Cluster) -> float:
    """SIGKILL to the executors on w1; return when."""
    found = cluster.spark.executors("w1")  # takes a while: it looks at all processes
    at_s = now_s()
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return at_s


def site_of(cluster: Cluster, name: str) -> Path:
    [site] = cluster.hosts[name].node.glob("lib/python*/site-packages")
    return site
