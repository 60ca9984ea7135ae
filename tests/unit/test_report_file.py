"""The report in a file: it is written however the run ends, or it is said why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.errors import (
    CheckpointUnavailableError,
    ConfigError,
    InfrastructureError,
    ProcessError,
)
from flowctl.instrumentation.snapshot import Waits
from flowctl.runtime.flow_control_spout import FlowControlSpout
from tests.runtime_parts import FailingStore, ListProducer, Witness


def spout_of(process: object, store: FailingStore, count: int = 50) -> FlowControlSpout:
    return FlowControlSpout(
        name="job",
        producer=ListProducer(count),
        bolts=LocalBolts(process, count=2),
        checkpoint=store,
        settings=Settings().with_overrides({"retry.attempts_max": 1, "tuple.records_max": 5}),
    )


def test_the_report_is_written_however_the_run_ends(tmp_path: Path):
    path = tmp_path / "report.json"
    report = spout_of(lambda batch: None, FailingStore()).run(view="off", report_path=path)
    written = json.loads(path.read_text())
    assert (written["outcome"], written["records_acked"]) == ("finished", 50)
    assert set(written["waits"]) == set(Waits.__struct_fields__)
    assert report.records_acked == 50

    with pytest.raises(ProcessError) as caught:
        spout_of(lambda batch: 1 / 0, FailingStore()).run(view="off", report_path=path)
    written = json.loads(path.read_text())
    assert written["outcome"] == "failed"
    assert "ZeroDivisionError" in written["error"]
    assert caught.value.report.outcome == "failed"


@pytest.mark.parametrize("path", [5, "", True])
def test_what_is_no_path_is_refused_before_the_run(path: object) -> None:
    done: list[object] = []
    with pytest.raises(ConfigError, match="report_path") as caught:
        spout_of(done.append, FailingStore()).run(view="off", report_path=path)
    assert not done and caught.value.exit_code == 2


def test_a_report_that_can_not_be_written_hides_nothing(tmp_path: Path):
    """A disk was full when the run ended: a traceback took the place of what the run said."""
    path = tmp_path / "gone" / "report.json"
    with pytest.raises(InfrastructureError, match=r"is over \(finished\).*No such file") as caught:
        spout_of(lambda batch: None, FailingStore()).run(view="off", report_path=path)
    assert caught.value.report.records_acked == 50

    witness = Witness()
    with pytest.raises(ProcessError, match="ZeroDivisionError"):
        spout_of(lambda batch: 1 / 0, FailingStore()).run(view=witness, report_path=path)
    assert any("its report can't be written" in text for text in witness.messages)


def test_the_report_is_written_even_if_the_run_could_not_begin(tmp_path: Path):
    class Away(FailingStore):
        def acquire(self, job: str) -> int:
            raise CheckpointUnavailableError("Redis can't be reached.")

    path = tmp_path / "report.json"
    path.write_text("of yesterday")
    with pytest.raises(CheckpointUnavailableError):
        spout_of(lambda batch: None, Away()).run(view="off", report_path=path)
    written = json.loads(path.read_text())
    assert (written["outcome"], written["error"]) == ("failed", "Redis can't be reached.")
