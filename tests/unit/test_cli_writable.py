"""A file or an output that can't be written: said as that, with a remedy, and before the work."""

from __future__ import annotations

import errno
from pathlib import Path

import click
import pytest

from flowctl.cli import main as cli_main
from flowctl.cli.click_options import write
from flowctl.cli.dlq import _reading
from flowctl.errors import EXIT_FAILED, EXIT_USAGE, InfrastructureError


@pytest.mark.parametrize("option", ["--report", "--plot"])
def test_simulate_tries_its_files_before_it_runs(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowctl_lab.simulation.sweep.run_jobs", lambda *_: pytest.fail("it ran"))
    path = str(tmp_path / "gone" / "picture.svg")
    assert cli_main.main(["simulate", "homog", option, path]) == EXIT_USAGE
    assert f"{option}: no directory" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--report", "--events"])
def test_a_run_does_not_write_over_its_program(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.py"
    job.write_text("spout = 1\n")
    assert cli_main.main(["run", f"{job}:spout", option, str(job)]) == EXIT_USAGE
    assert f"{option}: {job} is what is read. Name another file." in " ".join(
        capsys.readouterr().err.split()
    )
    assert job.read_text() == "spout = 1\n"


def test_a_full_disk_at_the_end_names_the_option_and_the_file() -> None:
    with pytest.raises(InfrastructureError, match=r"--plot: /dev/full can't be written: No space"):
        write("--plot", Path("/dev/full"), "x")


@click.command()
def tell() -> None:
    """Write to a disk that is full."""
    raise OSError(errno.ENOSPC, "No space left on device", "letters.jsonl")


def test_a_file_on_a_full_disk_is_no_defect_of_flowctl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli_main.COMMANDS, "tell", (f"{__name__}:tell", "For tests."))
    assert cli_main.main(["tell"]) == EXIT_FAILED
    told = capsys.readouterr().err
    assert "letters.jsonl can't be written: no space is left." in told
    assert "report it" not in told


def test_dead_letters_on_a_full_disk_are_not_a_matter_of_permissions() -> None:
    with pytest.raises(InfrastructureError, match="Free some space"), _reading():
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(InfrastructureError, match="permissions"), _reading():
        raise PermissionError(errno.EACCES, "Permission denied")
