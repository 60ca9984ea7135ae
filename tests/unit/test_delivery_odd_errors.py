"""Errors of ``fn`` that are hard to show, or are no ``Exception``: their row is kept, like others.

What is kept about them has no password, can be written to a file, and is short.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.errors import ProcessError, RetryLater, UnrunnableError
from flowctl_files import FileDeadLetter
from tests.unit.test_delivery import Letters, Target, deliver

URL = "postgresql://me:secret@host/db"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


class Panic(BaseException):
    """As ``pyo3_runtime.PanicException``."""


def failing(error: BaseException, target: Target) -> Callable[[Batch], None]:
    def fn(batch: Batch) -> None:
        for record in batch:
            if record.value == 7:
                raise error
        target.take(batch)

    return fn


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Mute(), "Mute"),
        (ValueError("\ud800 is half a pair"), "ValueError: ? is half a pair"),
        (OSError(f"{URL} is down"), "OSError: postgresql://***@host/db is down"),
        (ValueError("x" * 1_000_000), f"ValueError: {'x' * 988}"),
        (SystemExit(2), "SystemExit: 2"),
        (Panic("unwrap"), "Panic: unwrap"),
    ],
)
def test_its_row_becomes_a_letter_that_can_be_read(
    error: BaseException, reason: str, tmp_path: Path
) -> None:
    target, store = Target(), FileDeadLetter(tmp_path)
    tally = deliver(failing(error, target), range(100), dead_letter=store, attempts_max=2)
    assert (tally.written, tally.kept, len(target.taken)) == (99, 1, 99)
    [letter] = store.file_of("job").read().of("job")
    assert letter.reason == reason


def test_so_does_what_is_raised_in_a_coroutine() -> None:
    import asyncio

    async def fn(batch: Batch) -> None:
        if any(record.value == 7 for record in batch):
            raise asyncio.CancelledError

    letters = Letters()
    tally = deliver(fn, range(20), dead_letter=letters, attempts_max=2)
    assert (tally.written, [letter[3] for letter in letters.kept]) == (19, [7])


def test_a_reason_to_reject_is_kept_like_that_too() -> None:
    letters = Letters()

    def fn(batch: Batch) -> None:
        for record in batch:
            batch.reject(record, f"{URL} \ud800 " + "x" * 1_000_000)

    deliver(fn, "a", dead_letter=letters)
    [kept] = letters.kept
    assert kept[-1].startswith("rejected: postgresql://***@host/db ? xxx")
    assert len(kept[-1]) < 1_100


def test_without_a_dead_letter_the_partition_fails_and_says_why() -> None:
    with pytest.raises(ProcessError, match=r"row 7 of partition 7 failed 2 times: Panic: unwrap"):
        deliver(failing(Panic("unwrap"), Target()), range(20), attempts_max=2)


def test_ctrl_c_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        deliver(failing(KeyboardInterrupt(), Target()), range(20), dead_letter=Letters())


@pytest.mark.parametrize("again", [[False, True, True], [True], 3, [0.0], ["0"]])
def test_flags_in_the_place_of_indices_end_the_partition(again: Any) -> None:
    """As indices, three flags would name the rows 0 and 1: the third would be lost."""

    def bulk(batch: Batch) -> None:
        raise RetryLater("full", again=again)

    with pytest.raises(UnrunnableError, match=r"again=.* not indices"):
        deliver(bulk, "abc")
