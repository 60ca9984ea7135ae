"""A command configures structlog when something is written, or the job's code has loaded it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SETUP = """
import sys
from flowctl.instrumentation.logging import configure, get_logger, is_heard, settle
from flowctl.instrumentation.logging import light_logger
from flowctl.logs import ModuleLogger
configure(flow_events=False)
assert "structlog" not in sys.modules
"""


def told(code: str) -> list[str]:
    """What a program of ours writes, which has configured structlog: stdout, then stderr."""
    ran = subprocess.run(
        [sys.executable, "-c", SETUP + code], capture_output=True, text=True, check=True
    )
    return (ran.stdout + ran.stderr).splitlines()


def test_what_is_not_written_loads_nothing() -> None:
    code = """
for logger in (get_logger(), light_logger(), ModuleLogger("flowctl.x")):
    logger.log(20, "checkpoint_read")
    logger.log(30, "bolt_removed", bolt="b1")  # the view shows it
assert is_heard()
assert not {"structlog", "rich", "asyncio"} & set(sys.modules)
"""
    assert told(code) == []


@pytest.mark.parametrize("logger", ["get_logger()", "light_logger()", "ModuleLogger('flowctl.x')"])
def test_the_first_event_that_is_written_is_written_as_configured(logger: str) -> None:
    code = f"""
logger = {logger}
for name in ("first", "second"):
    logger.log(30, name, at="x")
"""
    lines = told(code)
    assert [line.split(" ", 1)[1] for line in lines] == [
        "level='warning' event='first' at='x'",
        "level='warning' event='second' at='x'",
    ]


def test_a_job_that_has_loaded_structlog_finds_it_configured() -> None:
    code = """
import structlog
theirs = structlog.get_logger()
settle()
theirs.info("too_low")
theirs.warning("written")
get_logger().log(30, "ours")
"""
    assert [line.split(" ", 1)[1] for line in told(code)] == [
        "level='warning' event='written'",
        "level='warning' event='ours'",
    ]


def test_so_does_the_file_of_a_job(tmp_path: Path) -> None:
    """As ``flowctl run`` loads it; it finds structlog configured."""
    job = tmp_path / "job.py"
    job.write_text("import structlog\nspout = structlog.get_logger()\n")
    code = f"""
from flowctl.cli.find_job import load_object
found = load_object({str(job)!r}, field="JOB", attribute="spout")
found.value.info("too_low")
found.value.warning("written")
"""
    assert [line.split(" ", 1)[1] for line in told(code)] == ["level='warning' event='written'"]


def test_so_does_code_that_loads_it_later_from_our_next_event_on() -> None:
    code = """
logger = get_logger()
settle()
assert "structlog" not in sys.modules
import structlog
logger.log(20, "too_low")
structlog.get_logger().warning("written")
"""
    assert [line.split(" ", 1)[1] for line in told(code)] == ["level='warning' event='written'"]


def test_the_users_configuration_stands() -> None:
    code = """
logger = get_logger()
import structlog
structlog.configure(processors=[lambda _, __, fields: f"mine {fields['event']}"],
                    logger_factory=structlog.PrintLoggerFactory())
settle()
logger.log(30, "bolt_removed")
"""
    assert told(code) == ["mine bolt_removed"]


def test_the_last_configuration_counts() -> None:
    code = """
configure("ERROR", as_json=True)
logger = get_logger()
logger.log(30, "too_low")
assert "structlog" not in sys.modules
logger.log(40, "written")
"""
    [line] = told(code)
    assert line.startswith("{")
