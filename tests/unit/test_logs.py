"""Where a module's events go, in a program that has set up logging and in one that has not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EVENTS = """
from flowctl.logs import ModuleLogger
log = ModuleLogger("flowctl.x")
log.debug("slots_unknown")
log.info("write_done", rows=3)
log.warning("relay_away", reason="\\x1b[2J down", away_s=2.0)
"""


def written(setup: str) -> tuple[str, str]:
    """What a program of its own writes on stdout and stderr."""
    ran = subprocess.run(
        [sys.executable, "-c", setup + EVENTS], capture_output=True, text=True, check=True
    )
    return ran.stdout, ran.stderr


@pytest.mark.req("S121")
@pytest.mark.parametrize("setup", ["", "import structlog\n"])
def test_a_program_without_logging_sees_warnings_on_stderr_and_nothing_else(setup: str) -> None:
    assert written(setup) == ("", "flowctl: relay_away reason='\\x1b[2J down' away_s=2.0\n")


def test_a_program_with_logging_gets_them_there() -> None:
    out, error = written("import logging; logging.basicConfig(level='INFO')\n")
    assert out == ""
    assert error.splitlines() == [
        "INFO:flowctl.x:write_done rows=3",
        "WARNING:flowctl.x:relay_away reason='\\x1b[2J down' away_s=2.0",
    ]


def test_a_program_with_structlog_gets_them_there() -> None:
    setup = "import structlog; structlog.configure(processors=[lambda _, __, d: repr(d)])\n"
    out, error = written(setup)
    assert (error, len(out.splitlines())) == ("", 3)


def test_a_program_may_set_logging_up_after_the_import() -> None:
    late = EVENTS + "import logging; logging.basicConfig(level='INFO'); log.info('later')"
    ran = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True, check=True)
    assert ran.stderr.splitlines()[1:] == ["INFO:flowctl.x:later "]


def test_only_the_room_for_logs_uses_structlog() -> None:
    used = [
        str(path.relative_to(ROOT))
        for folder in ("flowctl", "adapters")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^\s*(import|from) structlog", path.read_text(), re.MULTILINE)
    ]
    assert all(path.startswith("flowctl/instrumentation/") for path in used), used


def test_a_log_that_can_not_be_written_ends_nothing() -> None:
    """``flowctl run --log json 2>&1 | head -1`` ended the run."""
    program = (
        "from flowctl.instrumentation import logging\n"
        "logging.configure('INFO', as_json=True)\n"
        "logging.get_logger().log(20, 'run_started')\n"
        "print('went on')\n"
    )
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=False,
        )
    assert ran.stdout == "went on\n"
