"""``--report FILE`` is tried before the run, and the file is left as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowctl.cli.click_options import check_writable
from flowctl.errors import ConfigError


def test_a_file_that_was_not_there_is_not_left_behind(tmp_path: Path) -> None:
    check_writable("--report", tmp_path / "report.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{}"])
def test_a_file_that_was_there_stays(tmp_path: Path, text: str) -> None:
    """Also an empty one: another driver, which waits, may be trying it at this moment."""
    (tmp_path / "report.json").write_text(text)
    check_writable("--report", tmp_path / "report.json")
    assert (tmp_path / "report.json").read_text() == text


def test_another_driver_that_takes_it_away_meanwhile_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers of one job with --standby name the same report."""
    opened = Path.open

    def open_and_lose(path: Path, mode: str) -> object:
        file = opened(path, mode)
        path.unlink()
        return file

    monkeypatch.setattr(Path, "open", open_and_lose)
    check_writable("--report", tmp_path / "report.json")


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no directory .*gone"):
        check_writable("--report", tmp_path / "gone" / "report.json")
