"""An error that is no ``Exception``, as a panic of a library in Rust, fails its record."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowctl import Batch, FlowControlSpout, LocalBolts, Settings
from flowctl.testing import run_local
from flowctl.testing.processes import QUICK
from flowctl_files import FileDeadLetter, TextRanges


class Panic(BaseException):
    """As ``pyo3_runtime.PanicException``, which pyo3 derives from ``BaseException``."""


def check(batch: Batch) -> None:
    for record in batch:
        if record.value == "7":
            raise Panic("called `Option::unwrap()` on a `None` value")


async def check_async(batch: Batch) -> None:
    check(batch)


@pytest.mark.parametrize("process", [check, check_async])
def test_a_panic_fails_its_record_and_not_the_bolt(process: object) -> None:
    run = run_local(process, [str(number) for number in range(20)])  # type: ignore[arg-type]
    assert [lost.value for lost in run.dead_letters] == ["7"]
    assert "Option::unwrap" in run.dead_letters[0].reason
    assert (len(run.done), run.report.bolts_lost) == (19, 0)


def test_so_it_does_in_a_range(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("".join(f"{number}\n" for number in range(20)))
    spout = FlowControlSpout(
        name="test",
        producer=TextRanges(tmp_path / "a.log"),
        bolts=LocalBolts(check, count=2),
        settings=Settings().with_overrides(QUICK),
        dead_letter=FileDeadLetter(tmp_path / "letters"),
    )
    report = spout.run(view="off")
    assert (report.records_acked, report.records_dead_lettered, report.bolts_lost) == (20, 1, 0)
