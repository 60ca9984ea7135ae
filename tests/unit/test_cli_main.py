"""The command line: help, version, exit codes, messages without tracebacks."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import structlog

import flowctl
from flowctl import logs
from flowctl.cli import main as cli_main
from flowctl.cli.run import view_mode
from flowctl.errors import ConfigError, InfrastructureError
from flowctl.instrumentation.views import BaseView, make_view


@click.command()
@click.argument("what")
def raiser(what: str) -> int:
    """Raise or return what a test asks for."""
    errors: dict[str, BaseException] = {
        "config": ConfigError("name", "is bad.", remedy="Use another."),
        "fault": InfrastructureError("redis://me:secret@host is away.", remedy="Start it."),
        "interrupt": KeyboardInterrupt(),
        "defect": ZeroDivisionError("oops"),
    }
    if what in errors:
        raise errors[what]
    return int(what)


@pytest.fixture(autouse=True)
def raising_command(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(cli_main.DEBUG_VARIABLE, raising=False)
    monkeypatch.setitem(cli_main.COMMANDS, "raise", (f"{__name__}:raiser", "For tests."))
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("what", "code"),
    [("0", 0), ("1", 1), ("config", 2), ("fault", 1), ("interrupt", 130), ("defect", 1)],
)
def test_exit_codes(what: str, code: int) -> None:
    assert cli_main.main(["raise", what]) == code


@pytest.mark.parametrize("arguments", [["--version"], ["doctor", "--help"], ["simulate", "--list"]])
def test_an_output_that_can_not_be_written_is_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli_main.main(arguments) == 1
    assert capsys.readouterr().err == (
        "flowctl: the output can't be written: No space left on device.\n"
    )


def test_an_error_is_problem_and_remedy_without_traceback_or_secret(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli_main.main(["raise", "fault"])
    err = capsys.readouterr().err
    assert err == "flowctl: redis://***@host is away.\n         Start it.\n"


def test_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cli_main.DEBUG_VARIABLE, "1")
    cli_main.main(["raise", "config"])
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "flowctl: name: is bad." in err


def test_a_defect_shows_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    cli_main.main(["raise", "defect"])
    assert "ZeroDivisionError: oops" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nonsense"], ["run"], ["run", "--nonsense", "x.py"]])
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main.main(arguments) == 2
    assert "Error:" in capsys.readouterr().err


def test_a_file_is_no_directory_for_dead_letters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letters").write_text("")
    code = cli_main.main(["run", "job.py", "--dead-letters", str(tmp_path / "letters")])
    said = capsys.readouterr().err
    assert code == 2
    assert "--dead-letters" in said
    assert "is a file" in said


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main.main(["--version"]) == 0
    assert cli_main.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert f"flowctl {flowctl.__version__}" in out
    for name in ("run", "demo", "checkpoint", "doctor"):
        assert name in out


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "flowctl", "--version"]
    assert "flowctl" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", ["run", "demo", "checkpoint", "doctor"])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main.main([name, "--help"]) == 0
    assert "Usage: flowctl" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from flowctl.cli.main import main; main(['--help']);"
        "bad = {'rich', 'redis', 'pyspark', 'structlog', 'flowctl.runtime'} & set(sys.modules);"
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env={"PYTHONPATH": ":".join(p for p in sys.path if p)})  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_log_leaves_out_what_the_view_shows(capsys: pytest.CaptureFixture[str]) -> None:
    for level in ([], ["--log-level", "warning"]):
        cli_main.main([*level, "raise", "0"])
        logger = structlog.get_logger()
        logger.log(30, "bolt_removed", bolt="b1")
        logger.warning("checkpoint_not_durable")
        err = capsys.readouterr().err
        assert ("bolt_removed" in err) == bool(level)
        assert "event='checkpoint_not_durable'" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--log-level", "debug", "raise", "0"],
        ["raise", "--log-level", "debug", "0"],
        ["raise", "0", "--log-level", "DEBUG"],
        ["--log-level", "error", "raise", "0", "--log-level", "debug"],  # the inner one wins
    ],
)
def test_the_log_level_on_either_side_of_the_command(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli_main.main(arguments) == 0
    structlog.get_logger().log(logging.DEBUG, "bolt_removed", bolt="b1")
    assert "event='bolt_removed'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "level", "is_told"),
    [
        (["--log", "json", "raise", "0"], logging.INFO, True),
        (["raise", "0", "--log", "json"], logging.INFO, True),
        (["raise", "0", "--log", "json"], logging.DEBUG, False),
        (["raise", "0", "--log-level", "debug", "--log", "json"], logging.DEBUG, True),
        (["--log", "json", "raise", "0", "--log-level", "error"], logging.WARNING, False),
    ],
)
def test_the_log_as_json(
    arguments: list[str], level: int, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli_main.main(arguments) == 0
    structlog.get_logger().log(level, "bolt_removed", bolt="b1", odd=object, text="é\n")
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["event"], each["bolt"], each["text"]) for each in told] == (
        [("bolt_removed", "b1", "é\n")] if is_told else []
    )


@pytest.mark.req("S121")
def test_each_event_of_a_run_has_the_job_and_a_wall_clock_time_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: a field that some events have.  Those of the core and of waits had no job."""
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text(
        "from flowctl import FlowControlSpout, LocalBolts\n"
        "from flowctl.logs import ModuleLogger\n"
        "def load(batch):\n"
        "    ModuleLogger('flowctl_sql').warning('of_a_module')\n"
        "    batch.reject(0, 'bad')\n"
        "spout = FlowControlSpout(name='j', producer=range(9), bolts=LocalBolts(load, count=1))\n"
    )
    cli_main.main(["--log", "json", "--log-level", "debug", "run", "job.py:spout", "--quiet"])
    told = [
        json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")
    ]
    names = {each["event"] for each in told}
    assert names > {"run_started", "run_finished", "of_a_module", "records_rejected", "bolt_added"}
    assert "spout_activated" in names, "of the spout's loop"
    assert {each.get("job") for each in told} == {"j"}
    assert all(each["timestamp"].endswith("Z") for each in told)


def test_of_two_runs_in_a_process_events_name_theirs_or_none() -> None:
    with logs.running("a"):
        assert logs.with_job({}) == {"job": "a"}
        with logs.running("a"):
            assert logs.with_job({"job": "own"}) == {"job": "own"}
        with logs.running("b"):
            assert logs.with_job({}) == {}
    assert logs.with_job({}) == {}


@pytest.mark.parametrize("mode", ["quiet", "off"])
def test_quiet_is_one_name_for_command_line_and_python(mode: str) -> None:
    assert type(make_view(mode)) is BaseView
    assert view_mode(plain=False, quiet=True) == "quiet"


@pytest.mark.parametrize("name", [*cli_main.COMMANDS, "checkpoint list", "dlq show"])
def test_every_command_takes_a_log_level(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # a command is one object, however often it is asked for
        assert cli_main.main([*name.split(), "--help"]) == 0
        assert capsys.readouterr().out.count("--log-level") == 1
    assert cli_main.main([*name.split(), "--log-level", "loud"]) == 2
    assert cli_main.main([*name.split(), "--log", "xml"]) == 2


def test_without_a_log_level_behind_the_command_the_one_before_it_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli_main.main(["--log-level", "error", "raise", "0"])
    structlog.get_logger().warning("checkpoint_not_durable")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("group", ["checkpoint", "dlq", "receipts"])
def test_a_group_without_a_command_shows_its_help_in_lines(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli_main.main([group]) == 2
    shown = "".join(capsys.readouterr())
    assert "\\n" not in shown
    assert "  show " in shown, "a line for each command"


@pytest.mark.parametrize("name", ["jä–ö", "j" * 300 + "ä"])
def test_a_name_that_python_did_not_decode_is_that_of_the_job(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with LC_ALL=C and without Python's UTF-8 mode."""
    given = name.encode().decode("ascii", "surrogateescape")
    assert cli_main.main(["dlq", "show", given, "--dir", str(tmp_path)]) == 2
    assert f"no dead letters of job {name!r}" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_where_only_ascii_could_be_written_it_is_utf_8(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with LC_ALL=C; any other encoding was chosen by somebody."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    monkeypatch.setattr("sys.stderr", stream)
    cli_main.main(["--version"])
    stream.write("jä")
    stream.flush()
    assert raw.getvalue() == "jä".encode("utf-8" if encoding == "ascii" else encoding)
