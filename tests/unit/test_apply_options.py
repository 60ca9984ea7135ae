"""What ``apply`` takes as the other doors do: a target, attempts, letters, a bound of losses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from flowctl import Limits, RetryLater
from flowctl.errors import ProcessError, TooManyLostError
from flowctl_apply import Applied, apply_parquet
from flowctl_files import FileDeadLetter

SCHEMA = pyarrow.schema([("id", pyarrow.int64())])
ROWS = 200
FAST = {"retry.backoff_first_s": 0.001, "retry.backoff_max_s": 0.01}
BAD = 7


def run(place: Path, fn: Callable[..., Any], **options: Any) -> Applied:
    pyarrow.parquet.write_table(
        pyarrow.table({"id": range(ROWS)}), place / "in.parquet", row_group_size=20
    )
    options = {"bolts": 4, "view": "off", "settings": FAST, **options}
    return apply_parquet(
        place / "in.parquet", fn, schema=SCHEMA, name="job", out=place / "out", **options
    )


def ids(applied: Applied) -> list[int]:
    files = [file.removeprefix("file://") for file in applied.files]
    return sorted(n for file in files for n in pyarrow.parquet.read_table(file)["id"].to_pylist())


def same(batch: Any) -> Iterator[tuple[int]]:
    for record in batch:
        yield (record.value["id"],)


def failing(batch: Any) -> Iterator[tuple[int]]:
    for record in batch:
        if record.value["id"] == BAD:
            raise ValueError("bad")
        yield (record.value["id"],)


class InFlight:
    """How many calls there are at once; a generator's rows are part of its call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now -= 1


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_keep_the_targets_limit(tmp_path: Path, is_async: bool) -> None:
    calls = InFlight()

    def plain(batch: Any) -> Iterator[tuple[int]]:
        with calls:
            threading.Event().wait(0.002)
            yield from same(batch)

    async def awaited(batch: Any) -> list[tuple[int]]:
        with calls:
            await asyncio.sleep(0.002)
            return list(same(batch))

    limits = Limits(in_flight_max=1, in_flight_start=1)
    fn: Callable[..., Any] = awaited if is_async else plain
    applied = run(tmp_path, fn, target=f"one-{is_async}", limits=limits)
    assert ids(applied) == list(range(ROWS))
    assert calls.most == 1


def test_what_a_target_refuses_is_called_again_and_each_row_is_there_once(tmp_path: Path) -> None:
    full = iter(range(3))

    def busy(batch: Any) -> Iterator[tuple[int]]:
        if next(full, None) is not None:
            raise RetryLater(after_s=0.001)
        yield from same(batch)

    applied = run(tmp_path, busy, target="busy")
    assert ids(applied) == list(range(ROWS))
    assert applied.report is not None
    assert applied.report.tuples_failed == 0, "a refusal is no failure"


def test_a_rule_of_the_users_own_says_what_a_refusal_is(tmp_path: Path) -> None:
    full = iter(range(3))  # calls that find it full

    def busy(batch: Any) -> Iterator[tuple[int]]:
        if next(full, None) is not None:
            raise KeyError("full")
        yield from same(batch)

    rule = {KeyError: 0.001}
    applied = run(tmp_path, busy, attempts_max=1, refusal=lambda error: rule.get(type(error)))
    assert ids(applied) == list(range(ROWS))


def test_a_directory_is_enough_for_letters(tmp_path: Path) -> None:
    letters = tmp_path / "letters"
    applied = run(tmp_path, failing, attempts_max=2, dead_letter=str(letters))
    assert ids(applied) == [n for n in range(ROWS) if n != BAD]
    found = FileDeadLetter(letters).file_of("job").read().of("job")
    assert [(letter.value["id"], letter.attempts) for letter in found] == [(BAD, 2)]


def test_more_losses_than_allowed_end_the_job(tmp_path: Path) -> None:
    with pytest.raises(TooManyLostError):
        run(tmp_path, failing, attempts_max=1, dead_letter=tmp_path / "letters", fail_over="0")


def test_without_letters_a_row_that_always_fails_ends_the_job(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="bad"):
        run(tmp_path, failing, attempts_max=2)
