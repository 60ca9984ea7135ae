"""A run that outlives who started it: later tries attach to it, and no two are at work at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_parts import Valkey

from flowctl import ConfigError, DetachedRun, Ended, InfrastructureError

# Stands for `flowctl run`: says that it began, ends when it may, and saves when it is told to end.
PROGRAM = """
import json, os, pathlib, signal, sys, time
here = pathlib.Path.cwd()
code = [0]
signal.signal(signal.SIGTERM, lambda *_: (code.append(130), (here / "go").touch()))
with open(here / "began", "a") as began:
    began.write(f"{os.getpid()} {os.getppid()}\\n")
print("at work", flush=True)
while not (here / "go").exists():
    time.sleep(0.01)
report = sys.argv[sys.argv.index("--report") + 1]
pathlib.Path(report).write_text(json.dumps({"job": "visits", "records_acked": 7}))
sys.exit(code[-1] or int(pathlib.Path("code").read_text()))
"""
STARTER = """
import sys, time
from flowctl import DetachedRun
DetachedRun("visits", [sys.executable, "program.py"], occasion="monday").start()
print("started", flush=True)
time.sleep(600)
"""


class Place:
    """A directory with the program, and what there is to know about its runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "program.py").write_text(PROGRAM)
        (path / "code").write_text("0")

    def run(self, occasion: str = "monday") -> DetachedRun:
        command = [sys.executable, "program.py"]
        return DetachedRun("visits", command, occasion=occasion, directory=self.path)

    def began(self) -> list[tuple[int, int]]:
        """The process and the keeper of each run so far."""
        try:
            lines = (self.path / "began").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(int(pid), int(keeper)) for pid, keeper in map(str.split, lines)]

    def begun(self, count: int = 1) -> list[tuple[int, int]]:
        until(lambda: len(self.began()) >= count)
        return self.began()

    def go(self, code: int = 0) -> None:
        (self.path / "code").write_text(str(code))
        (self.path / "go").touch()

    def hold(self) -> None:
        (self.path / "go").unlink()


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s, "it does not come to that"
        time.sleep(0.01)


def soon(run: DetachedRun) -> Ended:
    until(lambda: run.ended() is not None)
    ended = run.ended()
    assert ended is not None
    return ended


def tells(run: DetachedRun, text: str) -> None:
    """Wait until the run has printed ``text``."""
    said: list[str] = []

    def does() -> bool:
        said.append(run.printed())
        return text in "".join(said)

    until(does)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.go()
    for pid, _ in place.began():
        until(lambda pid=pid: not is_alive(pid))  # type: ignore[misc]


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # also gone between opening and reading
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_run_outlives_a_worker_that_is_killed_and_the_next_try_is_told_how_it_ended(
    place: Place,
) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", STARTER], cwd=place.path, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )  # fmt: skip
    assert worker.stdout is not None
    with worker, worker.stdout:
        assert worker.stdout.readline() == b"started\n"
        place.begun()
        os.killpg(worker.pid, signal.SIGKILL)
    again = place.run()
    assert not again.start(), "it attached"
    assert again.ended() is None
    assert again.printed() == "at work"
    place.go()
    assert soon(again) == Ended(0, {"job": "visits", "records_acked": 7})
    assert len(place.began()) == 1


def test_of_many_tries_at_once_one_starts_the_run(place: Place) -> None:
    started: list[bool] = []
    threads = [
        threading.Thread(target=lambda: started.append(place.run().start())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == [False] * 7 + [True]
    place.go()
    assert soon(place.run()).is_done
    assert len(place.began()) == 1


def test_success_that_nobody_was_told_is_handed_over_once(place: Place) -> None:
    place.go()
    first = place.run()
    assert first.start()
    soon(first)
    assert place.run().wait().is_done
    assert len(place.began()) == 1
    assert place.run().wait().is_done, "a task that is cleared runs again"
    assert len(place.began()) == 2


@pytest.mark.parametrize("code", [1, 130])
def test_after_a_failure_that_nobody_was_told_the_next_try_resumes(place: Place, code: int) -> None:
    place.go(code)
    first = place.run()
    first.start()
    assert soon(first).code == code
    place.go(0)
    assert place.run().wait().is_done
    assert len(place.began()) == 2


def test_another_day_waits_for_the_run_that_is_at_work_and_then_starts_its_own(
    place: Place,
) -> None:
    place.run().start()
    place.begun()
    waited: list[float] = []

    def pause(for_s: float) -> None:
        waited.append(for_s)
        assert len(place.began()) == 1, "no two at once"
        place.go()
        time.sleep(0.05)

    assert place.run("tuesday").start(pause=pause)
    assert waited
    assert len(place.begun(2)) == 2


def test_a_run_whose_keeper_was_killed_keeps_its_name(place: Place) -> None:
    place.run().start()
    [(pid, keeper)] = place.begun()
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not is_alive(keeper))
    assert not place.run().start()
    place.go()
    until(lambda: not is_alive(pid))
    ended = soon(place.run())
    assert ended.code is None
    assert ended.retry_helps
    assert "ended without a word" in ended.problem


FORKING = """
import os, pathlib, sys, time
if os.fork() == 0:
    while not pathlib.Path("gone").exists():
        time.sleep(0.01)
"""


def test_what_a_run_left_behind_holds_up_the_next_run_but_not_the_news(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FORKING)
    run = DetachedRun("visits", [sys.executable, "program.py"], directory=tmp_path)
    assert run.wait().is_done
    waited: list[float] = []

    def pause(for_s: float) -> None:
        waited.append(for_s)
        (tmp_path / "gone").touch()

    assert run.start(pause=pause)
    assert waited
    assert soon(run).is_done


def test_a_run_that_is_killed_has_its_signal_as_its_code(place: Place) -> None:
    place.run().start()
    [(pid, _)] = place.begun()
    os.kill(pid, signal.SIGKILL)
    assert soon(place.run()) == Ended(-signal.SIGKILL)


def test_to_stop_a_run_lets_it_save(place: Place) -> None:
    run = place.run()
    run.start()
    place.begun()
    ended = run.stop()
    assert ended is not None
    assert (ended.code, ended.report["records_acked"]) == (130, 7)


def test_nobody_stops_the_run_of_another_day(place: Place) -> None:
    place.run().start()
    [(pid, _)] = place.begun()
    assert place.run("tuesday").stop() is None
    assert is_alive(pid)


def test_whoever_asks_where_nothing_was_started_is_told_so(place: Place) -> None:
    with pytest.raises(InfrastructureError, match="no run of 'visits' was started in"):
        place.run().ended()


@pytest.mark.parametrize(
    ("command", "directory", "told"),
    [
        (["no-such-program"], ".", "there is no program 'no-such-program'"),
        (["./program.sh"], ".", "there is no program './program.sh'"),
        ([sys.executable], "nowhere", "there is no directory"),
    ],
)
def test_what_can_not_be_started_is_said_at_once(
    command: list[str], directory: str, told: str, place: Place
) -> None:
    with pytest.raises(ConfigError, match=told):
        DetachedRun("visits", command, directory=place.path / directory).start()


JOB = """
from flowctl import FlowControlSpout, LocalBolts
spout = FlowControlSpout(
    name="visits", producer=list("abcdefg"), bolts=LocalBolts(lambda batch: None, count=1)
)
"""


def test_a_job_of_flowctl_hands_over_its_report(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "flowctl", "run", "job.py"]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = DetachedRun("visits", command, directory=tmp_path, environment=path)
    ended = run.wait()
    assert ended.is_done, run.printed()
    assert (ended.report["job"], ended.report["records_acked"]) == ("visits", 7)


SHARED_JOB = """
import pathlib, time
from flowctl import FlowControlSpout, LocalBolts

def work(batch):
    while not pathlib.Path({go!r}).exists():
        time.sleep(0.01)
    with open({seen!r}, "a") as seen:
        seen.writelines(record.value for record in batch)

spout = FlowControlSpout(
    name="visits", producer=list("abcdefg"), bolts=LocalBolts(work, count=1)
)
"""


def test_with_standby_a_try_on_another_machine_waits_and_nothing_runs_twice(
    tmp_path: Path, free_port: int
) -> None:
    """Two machines: two directories that know nothing of each other."""
    go, seen = tmp_path / "go", tmp_path / "seen"
    runs = []
    server = Valkey(tmp_path, free_port)
    server.start()
    for machine in ("first", "second"):
        place = tmp_path / machine
        place.mkdir()
        (place / "job.py").write_text(SHARED_JOB.format(go=str(go), seen=str(seen)))
        command = [sys.executable, "-m", "flowctl", "run", "job.py", "--redis", server.url]
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        run = DetachedRun(
            "visits", [*command, "--standby"], directory=place, environment=path, occasion="monday"
        )
        assert run.start()
        tells(run, "waiting while" if runs else "records")
        runs.append(run)
    try:
        go.touch()
        first, second = (soon(run) for run in runs)
    finally:
        server.kill()
    assert (first.report["records_acked"], second.report["records_acked"]) == (7, 0)
    assert second.is_done and second.report["records_total"] == 7
    assert sorted(seen.read_text()) == list("abcdefg")


def test_wrong_usage_is_no_matter_for_a_retry(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flowctl", "run", "nowhere.py"]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = DetachedRun("visits", command, directory=tmp_path, environment=path)
    ended = run.wait()
    assert (ended.code, ended.retry_helps) == (2, False)
    assert "no file nowhere.py" in run.printed()
