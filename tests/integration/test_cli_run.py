"""``flowctl run`` as people run it: a process of its own, real files, SQLite and Valkey."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shlex
import signal
import sqlite3
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from fault_parts import Valkey

from tests.cli_parts import flowctl_here

ROOT = Path(__file__).resolve().parents[2]
LINES = 3_000
JOB = """
import time
from flowctl import FlowControlSpout, LocalBolts
from flowctl_files import TextLines
from flowctl_sql import SqlSink

sink = SqlSink("sqlite:///out.db", table="lines",
               schema="CREATE TABLE IF NOT EXISTS lines (line INTEGER, text TEXT)")

def load(batch):
    time.sleep(len(batch) * COST_S)
    sink.write([{"line": r.position[1], "text": r.value} for r in batch], batch=batch)

spout = FlowControlSpout(
    name="lines",
    producer=TextLines("in.log"),
    bolts=LocalBolts(load, count=4),
)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    text = "".join(f"line {n}\n" for n in range(1, LINES + 1))
    (tmp_path / "in.log").write_text(text)
    write_job(tmp_path, cost_s=0.0)
    return tmp_path


def write_job(place: Path, *, cost_s: float) -> None:
    (place / "job.py").write_text(JOB.replace("COST_S", str(cost_s)))


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "adapters")])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLOWCTL", "COLUMNS"))}
    return {**kept, "PYTHONPATH": path, **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flowctl.cli.main", *arguments]


def flowctl(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=place, env=environment(), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def rows(place: Path) -> list[tuple[int, str]]:
    connection = sqlite3.connect(place / "out.db")
    try:
        return connection.execute("SELECT line, text FROM lines ORDER BY line").fetchall()
    finally:
        connection.close()


EXACT = [(n, f"line {n}") for n in range(1, LINES + 1)]


def test_a_run_is_exact_and_the_second_does_nothing(place: Path) -> None:
    first = flowctl(place, "run", "job.py:spout", "--report", "report.json")
    assert first.returncode == 0, first.stderr
    assert "finished · 3 000 records in" in first.stderr
    assert "\x1b" not in first.stderr
    assert rows(place) == EXACT
    report = json.loads((place / "report.json").read_text())
    assert (report["outcome"], report["records_acked"]) == ("finished", LINES)

    second = flowctl(place, "run", "job.py", "--report", "report.json")
    assert second.returncode == 0, second.stderr
    assert "nothing to do: all 3 000 records were done before" in second.stderr
    assert json.loads((place / "report.json").read_text())["records_acked"] == 0
    assert rows(place) == EXACT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_saves_and_its_command_resumes(place: Path, number: signal.Signals) -> None:
    write_job(place, cost_s=0.004)  # 3 s on four bolts
    arguments = ["run", "job.py:spout", "--plain", "--report", "my report.json"]
    process = subprocess.Popen(
        command(*arguments), cwd=place, env=environment(), stderr=subprocess.PIPE, text=True
    )
    wait_for_rows(place)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    report = json.loads((place / "my report.json").read_text())
    assert report["outcome"] == "interrupted"
    assert 0 < report["records_acked"] < LINES

    hint = err.rpartition("resume with: ")[2].splitlines()[0]
    words = shlex.split(hint)
    assert words == ["python", "-m", "flowctl", *arguments]
    again = subprocess.run(
        [sys.executable, *words[1:]], cwd=place, env=environment(), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "resumed at " in again.stderr
    assert rows(place) == EXACT
    assert json.loads((place / "my report.json").read_text())["records_acked"] < LINES


def test_a_terminal_that_goes_away_costs_nothing(place: Path) -> None:
    write_job(place, cost_s=0.004)
    leader, follower = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(follower, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command("run", "job.py", "--report", "r.json"), cwd=place, stdin=follower,
        stdout=follower, stderr=follower, preexec_fn=take_terminal,  # noqa: PLW1509
        env={**environment(TERM="xterm-256color", LINES="40", COLUMNS="100"), "CI": ""},
    )  # fmt: skip
    os.close(follower)
    stop = threading.Event()
    terminal = threading.Thread(target=read_until, args=(stop, leader), daemon=True)
    terminal.start()
    wait_for_rows(place)
    stop.set()
    terminal.join()
    os.close(leader)  # the window is closed: SIGHUP, and every write fails
    process.wait(timeout=60)
    report = json.loads((place / "r.json").read_text())
    assert report["outcome"] == "interrupted" and 0 < report["records_acked"] < LINES
    assert report["records_saved"] == report["records_acked"], "all that was acked is saved"
    write_job(place, cost_s=0.0)
    again = flowctl(place, "run", "job.py")
    assert again.returncode == 0, again.stderr
    assert rows(place) == EXACT


def read_until(stop: threading.Event, leader: int) -> None:
    """Be the terminal, so that writes go on."""
    while not stop.is_set():
        if select.select([leader], [], [], 0.05)[0]:
            os.read(leader, 65536)


@pytest.mark.parametrize("how", ["pipe", "quiet", "debug"])
def test_the_command_that_resumes_holds_no_password_and_resumes(
    place: Path, free_port: int, how: str
) -> None:
    secret = "s3kret-w0rd"
    (place / "server").mkdir()
    server = Valkey(place / "server", free_port)
    server.start("--requirepass", secret)
    url = f"redis://:{secret}@127.0.0.1:{free_port}/0"
    write_job(place, cost_s=0.004)
    more = {"pipe": [], "quiet": ["--quiet"], "debug": ["--plain"]}[how]
    arguments = ["run", "job.py", "--report", "r.json", "--redis", url, *more]
    logging = ["--log-level", "DEBUG", "--debug"] if how == "debug" else []
    try:
        process = subprocess.Popen(
            command(*logging, *arguments), cwd=place, env=environment(), stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        wait_for_rows(place)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert secret not in err and secret not in (place / "r.json").read_text()
        hint = err.rpartition("resume with: ")[2].splitlines()[0]
        assert "FLOWCTL_REDIS_URL" in hint.partition("#")[2]
        again = subprocess.run(
            ["bash", "-c", hint.replace("python", shlex.quote(sys.executable), 1)], cwd=place,
            env=environment(FLOWCTL_REDIS_URL=url), capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert again.returncode == 0, again.stderr
        assert secret not in again.stderr
        assert rows(place) == EXACT
    finally:
        server.kill()


def wait_for_rows(place: Path) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            if len(rows(place)) > LINES / 10:
                return
        except sqlite3.OperationalError:
            pass  # the table is not there yet
        time.sleep(0.02)
    raise AssertionError("the job wrote nothing")


def test_a_process_that_raises_fails_with_1_and_a_report(place: Path) -> None:
    job = (place / "job.py").read_text().replace("    time.sleep", "    1 / 0\n    time.sleep")
    (place / "job.py").write_text(job)
    done = flowctl(
        place, "run", "job.py", "--set", "retry.attempts_max=2", "--report", "r.json", "--quiet"
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("flowctl: ")
    assert "ZeroDivisionError" in done.stderr
    assert "in.log" in done.stderr
    report = json.loads((place / "r.json").read_text())
    assert report["outcome"] == "failed"
    assert "ZeroDivisionError" in report["error"]


def test_the_error_that_ends_a_run_is_printed_once(place: Path) -> None:
    (place / "job.py").write_text((place / "job.py").read_text().replace('"in.log"', '"no.log"'))
    done = flowctl(place, "run", "job.py", "--plain")
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("no.log") == 1, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.py"], "no file nothing.py"),
        (["job.py:spoot"], "There is: job.py:spout."),
        (["job.py", "--set", "lab.window.policy=magic"], "lab.window.policy"),
        (["job.py", "--set", "window.polcy=fixed"], "no such setting"),
        (["job.py", "--report", "no/such/dir/r.json"], "--report"),
        (["job.py", "--report", "."], ". is a directory"),
        (["job.py", "--report", "/proc/version"], "--report: /proc/version can't be written"),
        (["job.py", "--set", "window.polcy=fixed"], "Did you mean lab.window.policy?"),
        (["job.py", "--set", "lab.window.policy=magic"], "just_full"),
        (["job.py", "--set", "checkpoint.interval_s=inf"], "above 0 and at most 3600"),
        (["job.py", "--set", "checkpoint.interval_s=1e10"], "above 0 and at most 3600"),
        (["job.py", "--redis", "host:6379"], "redis://[user:password@]host"),
        (["."], "neither a Python file nor the name of a module"),
        ([""], "neither a Python file nor the name of a module"),
        (["logs/"], "no file logs"),
        (["job.py", "--master", "local[2]"], "do not run on Spark"),
        (["job.py", "--bolts", "0"], "0 is not in the range"),
    ],
)
def test_wrong_usage_is_2_and_says_what(place: Path, arguments: list[str], said: str) -> None:
    done = flowctl_here(place, "run", *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_redis_away_is_1_and_names_no_password(place: Path) -> None:
    done = flowctl(place, "run", "job.py", "--redis", "redis://me:secret@127.0.0.1:1/0")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("flowctl: ")
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_and_bolts_are_replaced(place: Path) -> None:
    done = flowctl(place, "run", "job.py", "--bolts", "2", "--set", "lab.window.policy=fixed")
    assert done.returncode == 0, done.stderr
    assert "2 bolts" in done.stderr and "fixed" in done.stderr


def test_on_a_terminal_the_view_is_live_and_gives_the_terminal_back(place: Path) -> None:
    write_job(place, cost_s=0.001)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command("run", "job.py"), cwd=place, stdin=follower, stdout=follower, stderr=follower,
        env={**environment(TERM="xterm-256color", LINES="40", COLUMNS="100"), "CI": ""},
    )  # fmt: skip
    os.close(follower)
    shown = read_all(leader)
    assert process.wait(timeout=60) == 0, shown
    assert "in flight" in shown and "a kill now would run" in shown
    assert "finished · 3 000 records" in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l") >= 0  # the cursor is shown again


def read_all(leader: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # EIO: the other side has closed
            break
        if not part:
            break
        parts.append(part)
    os.close(leader)
    return b"".join(parts).decode()


def test_a_page_is_served_while_the_run_lasts_and_written_as_its_report(place: Path) -> None:
    write_job(place, cost_s=0.002)
    arguments = ("run", "job.py:spout", "--plain", "--page", "--report", "run.html")
    with subprocess.Popen(
        command(*arguments), cwd=place, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        url = next(line.split()[-1] for line in process.stderr if line.startswith("page at "))
        with urllib.request.urlopen(f"{url}events", timeout=60) as events:
            said = [json.loads(line[6:]) for line in events if line.startswith(b"data: ")]
        process.stderr.read()
    assert process.returncode == 0
    assert {"running", "finished"} <= {each["phase"] for each in said}
    assert said[-1]["resume"].endswith("run job.py:spout --plain --page --report run.html")
    assert "Finished · 3 000 records" in (place / "run.html").read_text()
