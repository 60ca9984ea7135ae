"""``flowctl doctor``: one line a check, a remedy where something is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from flowctl.cli import doctor
from flowctl.cli.main import main


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_all_well(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (doctor.check_python, doctor.check_directories))
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("ok ") for line in lines)


def test_missing_parts_have_a_remedy_and_exit_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(
        doctor,
        "CHECKS",
        (doctor.check_pyspark, doctor.check_redis_client, doctor.check_server),
    )
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.count("missing") == 3
    for extra in ("spark", "redis", "valkey"):
        assert f"flowctl-spark[{extra}]" in out
