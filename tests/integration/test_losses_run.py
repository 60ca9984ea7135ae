"""Runs that leave records out: what is counted, and what the limit of losses allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from dlq_parts import Target, letters_left, spout

from flowctl.bolts.batch import Batch
from flowctl.errors import ProcessError, TooManyLostError
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import FileDeadLetter
from tests.runtime_parts import ListProducer, Witness


def test_rejected_and_given_up_are_counted_apart_and_each_is_one_letter(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)

    def process(batch: Batch) -> None:
        for record in batch:
            if record.position in (77, 5_000, 9_999):
                raise ValueError(f"bad row {record.position}")
            if record.position in (1, 4_999):
                batch.reject(record, f"no id in {record.value!r}")

    report = spout(
        process, producer=ListProducer(20_000), dead_letter=letters,
        settings={"tuple.records_max": 500, "loss.fail_over": "5"},
    ).run(view="off")  # fmt: skip
    assert (report.records_rejected, report.records_dead_lettered) == (2, 3)
    assert report.records_acked == 20_000
    told = {told.reason: told.records for told in report.loss_reasons}
    assert told == {"ValueError: bad row #": 3, "no id in '…'": 2}
    kinds = {letter.position: letter.kind for letter in letters.file_of("job").read().of("job")}
    assert kinds == {
        1: "rejected", 77: "gave_up", 4_999: "rejected", 5_000: "gave_up", 9_999: "gave_up",
    }  # fmt: skip


def test_rejected_records_count_without_a_dead_letter_too() -> None:
    process = rejecting(3)
    assert spout(process).run(view="off").records_rejected == 1
    with pytest.raises(TooManyLostError, match=r"1 record rejected, of \d+ .*kept nowhere"):
        spout(process, settings={"loss.fail_over": "0"}).run(view="off")


def rejecting(position: int) -> Callable[[Batch], None]:
    """Return a process that rejects one record."""

    def process(batch: Batch) -> None:
        for record in batch:
            if record.position == position:
                batch.reject(record, "not wanted")

    return process


def test_a_run_that_loses_too_much_ends_saved_and_says_how_many_and_why(tmp_path: Path) -> None:
    store, target, view = MemoryCheckpointStore(), Target(*range(1, 3_000, 2)), Witness()
    target.cost_s = 0.001
    with pytest.raises(TooManyLostError) as caught:
        spout(
            target, producer=ListProducer(3_000), dead_letter=FileDeadLetter(tmp_path), store=store,
            settings={"loss.fail_over": "5"},
        ).run(view=view)  # fmt: skip
    report = view.report
    assert report is not None and report.outcome == "failed"
    lost = report.records_dead_lettered
    assert 5 < lost < 1_000 and report.records_saved == report.records_acked < 2_000
    text = str(caught.value)
    assert f"{lost} records dead-lettered, of {report.records_acked} records done" in text
    assert "ValueError: bad record #" in text and "flowctl dlq show job" in text
    assert store.load("job").records == report.records_acked
    assert len(letters_left(FileDeadLetter(tmp_path))) == lost


def test_what_the_limit_allows_is_no_failure(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)
    for limit in ("2", "3.4%"):  # 2 of 60 are 3.33 %
        how = {"loss.fail_over": limit}
        report = spout(Target(1, 2), dead_letter=letters, settings=how).run(view="off")
        assert report.outcome == "finished"


def test_a_share_of_a_short_run_is_exact_at_its_end(tmp_path: Path) -> None:
    letters = FileDeadLetter(tmp_path)
    with pytest.raises(TooManyLostError, match="2 records dead-lettered, of 60 records"):
        spout(Target(1, 2), dead_letter=letters, settings={"loss.fail_over": "3.3%"}).run(
            view="off"
        )


def test_without_a_dead_letter_the_error_names_the_remedy() -> None:
    with pytest.raises(ProcessError, match="flowctl run --dead-letters"):
        spout(Target(1)).run(view="off")
