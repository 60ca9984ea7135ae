"""Kill driver and workers of a job over ranges of 64 MB in turn; then count what was done twice.

    python -m tests.chaos.ranges [--kills 20] [--mb 64] [--files 4] [--interval-s .5]

Four bolts, each a process of its own that is started again when it dies, read text by reference;
each file is one range.  The checkpoint is in a Valkey that is not killed.  A batch is noted before
and after its work.  Printed: whether each line was done, and how many batches each kill made each
bolt do again.  By default the run takes 80 s of each bolt's work and 10 s for each kill.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from flowctl.bolts.batch import Batch
from flowctl.config import Settings
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint
from flowctl.ports import BoltNotice, Endpoint
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl_files import TextRanges
from flowctl_redis import RedisCheckpointStore
from flowctl_redis.embedded import EmbeddedServer

BOLTS = 4
BATCHES_MAX = 2  # for each bolt and kill
_DIGITS = 9
_LINE = "{:09d} " + "x" * 180 + "\n"
_POLL_S = 0.05
_TIMEOUT_S = 900.0
_ROOT = Path(__file__).parents[2]
_BE_BOLT = "import tests.chaos.ranges as c; c.be_bolt()"


class Whole(TextRanges):
    """Each file is one range, though the rest of one that was begun may start anywhere."""

    def extents(self, checkpoint: Checkpoint) -> Mapping[str, Extent]:
        found = super().extents(checkpoint)
        return {n: msgspec.structs.replace(e, is_splittable=False) for n, e in found.items()}


class Work:
    """Notes a batch in ``journal``, takes ``line_s`` for each line, notes that it is done."""

    def __init__(self, journal: str, line_s: float) -> None:
        self._journal = journal
        self._line_s = line_s

    def __call__(self, batch: Batch) -> None:
        numbers = [int(record.value[:_DIGITS]) for record in batch]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        self._note("begun", batch.bolt, numbers)
        time.sleep(self._line_s * len(numbers))
        self._note("done", batch.bolt, numbers)

    def _note(self, what: str, bolt: str, numbers: Sequence[int]) -> None:
        text = f"{what} {bolt} {numbers[0]} {len(numbers)} {time.time()}\n"
        journal = os.open(self._journal, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(journal, text.encode())  # one write: a line is whole
        os.close(journal)


class ProcessBolts:
    """A ``ports.Bolts``: a process for each bolt, started again when it ends."""

    count = BOLTS

    def __init__(self, work: Work) -> None:
        self._work = work
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def listen_host(self) -> str:
        return "127.0.0.1"

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        for number in range(1, self.count + 1):
            told = pickle.dumps((endpoint, f"b{number}", self._work))
            thread = threading.Thread(target=self._keep, args=(told,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, *, timeout_s: float) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout_s)

    def _keep(self, told: bytes) -> None:
        while not self._stopping.is_set():
            command = [sys.executable, "-c", _BE_BOLT]
            bolt = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=_ROOT)
            bolt.communicate(told)


class NotedStore(RedisCheckpointStore):
    """Notes in ``journal`` when each save began and ended."""

    def __init__(self, url: str, journal: Path) -> None:
        super().__init__(url)
        self._journal = journal

    def save(self, job: str, checkpoint: Checkpoint, *, epoch: int) -> None:
        began_s = time.time()
        super().save(job, checkpoint, epoch=epoch)
        with self._journal.open("a") as journal:
            journal.write(f"{began_s} {time.time()}\n")


def be_bolt() -> None:
    """Be the bolt that stdin names."""
    from flowctl.bolts.worker import run_bolt

    run_bolt(*pickle.loads(sys.stdin.buffer.read()))


def job(place: Path, line_s: float, url: str, interval_s: float) -> None:
    """One driver, in a process of its own."""
    settings = Settings().with_overrides({"checkpoint.interval_s": interval_s})
    FlowControlSpout(
        name="chaos",
        producer=Whole(f"{place}/*.log"),
        bolts=ProcessBolts(Work(str(place / "journal"), line_s)),
        checkpoint=NotedStore(url, place / "saves"),
        settings=settings,
    ).run(view="off")


class Noted(NamedTuple):
    """A batch in the journal."""

    what: str
    bolt: str
    first: int
    count: int
    at_s: float


def read_journal(path: Path) -> list[Noted]:
    """Return what is in the journal."""
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [Noted(w, b, int(first), int(n), float(at)) for w, b, first, n, at in rows]


def done_again(
    noted: Sequence[Noted], kills_s: Sequence[float]
) -> dict[tuple[int, str], set[Noted]]:
    """Return which batches were begun and came again, by bolt and by the first kill after that.

    -1 in place of a kill: it came again before the next one, as its bolt had fallen silent.
    """
    owner: dict[int, Noted] = {}  # who began a line last
    again: dict[tuple[int, str], set[Noted]] = {}
    for batch in sorted((one for one in noted if one.what == "begun"), key=lambda one: one.at_s):
        lines = range(batch.first, batch.first + batch.count)
        for before in {owner[n] for n in lines if n in owner}:
            kill = sum(at_s < before.at_s for at_s in kills_s)
            if kill == len(kills_s) or kills_s[kill] > batch.at_s:
                kill = -1
            again.setdefault((kill, before.bolt), set()).add(before)
        owner.update(dict.fromkeys(lines, batch))
    return again


def show(again: set[Noted], noted: Sequence[Noted], saves: Sequence[str], kill_s: float) -> None:
    """Print batches that one kill made one bolt do again, and the saves before it [ms]."""
    done = [one for one in noted if one.what == "done" and one.at_s < kill_s]
    ended = {(one.bolt, one.first): one.at_s for one in done}
    for one in sorted(again, key=lambda one: one.at_s):
        end_s = ended.get((one.bolt, one.first))
        took = "not ended" if end_s is None else f"took {1e3 * (end_s - one.at_s):.0f}"
        print(f"  {one.bolt}: {one.count} lines at {1e3 * (one.at_s - kill_s):.0f}, {took}")
    times = [(float(began), float(ended)) for began, ended in map(str.split, saves)]
    last = [(began, ended) for began, ended in times if began < kill_s][-4:]
    shown = [f"{1e3 * (began - kill_s):.0f}+{1e3 * (ended - began):.0f}" for began, ended in last]
    print(f"  saves: {', '.join(shown)}")


class Chaos:
    """Starts the job and kills parts of it."""

    def __init__(
        self, place: Path, job: Sequence[str], chance: random.Random, within_s: float
    ) -> None:
        self._command = [sys.executable, "-m", "tests.chaos.ranges", "--job", str(place), *job]
        self._log = (place / "log").open("w")
        self._journal = place / "journal"
        self._chance = chance
        self._within_s = within_s
        self.kills_s: list[float] = []  # when nothing was left of what was killed
        self.killed_s: list[float] = []
        self.who: list[str] = []

    def start(self) -> psutil.Popen:
        return psutil.Popen(self._command, stdout=self._log, stderr=subprocess.STDOUT, cwd=_ROOT)

    def kill_one(self, driver: psutil.Popen) -> bool:
        """Kill the driver or a worker some time after it does something; False: it has ended."""
        before, deadline_s = self._size(), time.monotonic() + _TIMEOUT_S
        while self._size() == before and driver.poll() is None:
            if time.monotonic() > deadline_s:
                driver.kill()
                raise SystemExit(f"nothing is done; see {self._log.name}")
            time.sleep(_POLL_S)
        time.sleep(self._chance.uniform(0, self._within_s))
        victim = driver if len(self.kills_s) % 2 == 0 else self._worker(driver)
        if victim is None or driver.poll() is not None:
            return driver.poll() is None
        below = driver.children() if victim is driver else []
        killed_s = time.time()
        victim.kill()
        victim.wait()
        _, alive = psutil.wait_procs(below, timeout=20)  # bolts notice that their driver is gone
        for one in alive:
            one.kill()
        self.kills_s.append(time.time())  # what bolts begin until they notice belongs to this kill
        self.killed_s.append(killed_s)
        self.who.append("driver" if victim is driver else "worker")
        return True

    def _worker(self, driver: psutil.Popen) -> psutil.Process | None:
        found = driver.children()
        return self._chance.choice(found) if found else None

    def _size(self) -> int:
        return self._journal.stat().st_size if self._journal.exists() else 0


def write_lines(place: Path, files: int, size_mb: int) -> int:
    """Write the files; return how many lines they have."""
    each = size_mb * 1_000_000 // len(_LINE.format(0))
    for number in range(files):
        with (place / f"{number}.log").open("w") as file:
            file.writelines(_LINE.format(n) for n in range(number * each, (number + 1) * each))
    return files * each


def tell(place: Path, lines: int, chaos: Chaos, code: int) -> int:
    """Print what came of it; return the exit code."""
    noted = read_journal(place / "journal")
    saves = (place / "saves").read_text().splitlines()
    done: set[int] = set()
    for one in noted:
        if one.what == "done":
            done.update(range(one.first, one.first + one.count))
    repeated = done_again(noted, chaos.kills_s)
    again = Counter({key: len(batches) for key, batches in repeated.items()})
    twice = sum(one.count for one in noted if one.what == "begun") - lines
    for number, who in enumerate(chaos.who):
        counts = [again[number, f"b{bolt}"] for bolt in range(1, BOLTS + 1)]
        print(f"kill {number + 1} ({who}): batches again, by bolt: {counts}")
        for bolt in range(1, BOLTS + 1):
            if again[number, f"b{bolt}"] >= BATCHES_MAX:
                show(repeated[number, f"b{bolt}"], noted, saves, chaos.killed_s[number])
    kills = len(chaos.who)
    of_kills = [
        again[number, f"b{bolt}"] for number in range(kills) for bolt in range(1, BOLTS + 1)
    ]
    most, silent = max(of_kills, default=0), sum(again.values()) - sum(of_kills)
    print(
        f"{kills} kills of driver and workers in turn; {twice} of {lines} lines were begun again"
        f" ({twice / lines:.2%}); batches again for each bolt and kill: the most {most}, in the"
        f" mean {sum(of_kills) / max(1, len(of_kills)):.2f} (gate {BATCHES_MAX}); {silent} without"
        " a kill, as a bolt stood still"
    )
    problem = f"the last run ended with {code}" if code else ""
    if len(done) != lines:
        problem = problem or f"{lines - len(done)} lines are missing"
    print(f"WRONG: {problem}" if problem else "EXACT: each line was done")
    return int(bool(problem) or most > BATCHES_MAX)


def main() -> int:
    """The command; 1 if a line is missing or a gate is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--mb", type=int, default=64, help="the size of a file, and so of a range")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=80.0, help="of work for each bolt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within-s", type=float, default=3.0, help="of something done, a kill")
    parser.add_argument("--interval-s", type=float, default=0.5, help="of the checkpoint")
    parser.add_argument("--keep", type=Path, help="leave all files there")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--line-s", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        job(given.job, given.line_s, given.url, given.interval_s)
        return 0
    with tempfile.TemporaryDirectory(prefix="flowctl-chaos-") as temporary:
        place = given.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        lines = write_lines(place, given.files, given.mb)
        server = EmbeddedServer(place / "redis")
        line_s = given.seconds * BOLTS / lines
        try:
            told = ["--line-s", str(line_s), "--url", server.start()]
            told += ["--interval-s", str(given.interval_s)]
            chaos = Chaos(place, told, random.Random(given.seed), given.within_s)
            driver = chaos.start()
            while len(chaos.who) < given.kills and chaos.kill_one(driver):
                if driver.poll() is not None:
                    driver = chaos.start()
            code = driver.wait(_TIMEOUT_S)
        finally:
            server.stop()
        return tell(place, lines, chaos, code)


if __name__ == "__main__":
    # What is pickled has to be found by the bolts, by this name.
    sys.exit(importlib.import_module("tests.chaos.ranges").main())
