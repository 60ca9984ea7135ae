"""Options that are times: what nobody can wait for is wrong usage, not a defect or a wait."""

from __future__ import annotations

import pytest

from flowctl.cli.main import main
from flowctl.errors import EXIT_USAGE


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    "command",
    [
        ["targets", "list", "--redis", "redis://127.0.0.1:1/0", "--every"],
        ["doctor", "--timeout"],
        ["demo", "--local", "--seconds"],
    ],
    ids=lambda words: words[0],
)
def test_a_time_that_is_no_time_is_refused_by_name(
    command: list[str], seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, seconds]) == EXIT_USAGE
    assert f"Invalid value for '{command[-1]}'" in capsys.readouterr().err


def test_a_time_longer_than_a_sleep_can_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["targets", "list", "--redis", "redis://127.0.0.1:1/0", "--every", "1e12"]
    assert main(words) == EXIT_USAGE
    assert "Invalid value for '--every'" in capsys.readouterr().err
