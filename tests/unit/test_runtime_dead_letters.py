"""The thread of dead letters: what waits is kept in one step, and counts only then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowctl.core.events import TupleGaveUp
from flowctl.core.failures import DeadTuple
from flowctl.core.letters import LeftOut
from flowctl.core.records import Record
from flowctl.errors import ProcessError
from flowctl.runtime.control import RunControl
from flowctl.runtime.dead_letters import TOGETHER_MAX, DeadLetters
from flowctl_files import FileDeadLetter
from flowctl_files import _letters as files
from tests.listener_parts import Letters


def dead(number: int) -> DeadTuple:
    gave_up = TupleGaveUp(
        at_s=1.0, tuple_id=number, partition="p", first=number, last=number, attempts=1,
        bolts=("b1",), reason=f"rejected: bad {number}",
    )  # fmt: skip
    return DeadTuple(gave_up, [Record(number, f"value {number}")])


class Core:
    """Notes what counts as done."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def on_dead_lettered(self, tuple_id: int, *, now_s: float) -> None:
        self.done.append(tuple_id)


class Batches(Letters):
    """Keeps several at once, and notes what counted as done before."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = core
        self.batches: list[tuple[list[Any], int]] = []

    def dead_letter_many(
        self, job: str, dead: Sequence[LeftOut], *, epoch: int | None = None
    ) -> None:
        assert (job, epoch) == ("job", 7)
        if self.error is not None:
            raise self.error
        numbers = [record.position for one in dead for record in one.records]
        self.batches.append((numbers, len(self.core.done)))


def worked_off(core: Any, port: Any, count: int) -> None:
    letters = DeadLetters(RunControl(core), port, job="job", epoch=7)
    for number in range(count):
        letters.put(dead(number))
    letters.stop(0)  # it was not started: what was put is worked off here
    letters.work()


def test_what_waits_is_kept_in_one_step_and_counts_after_it() -> None:
    core = Core()
    port = Batches(core)
    worked_off(core, port, TOGETHER_MAX + 2)
    first, rest = list(range(TOGETHER_MAX)), [TOGETHER_MAX, TOGETHER_MAX + 1]
    assert port.batches == [(first, 0), (rest, TOGETHER_MAX)]
    assert core.done == first + rest and not port.kept


def test_a_port_that_can_not_gets_one_at_a_time_as_ever() -> None:
    core, port = Core(), Letters()
    worked_off(core, port, 3)
    assert [kept[2] for kept in port.kept] == [[0], [1], [2]] and core.done == [0, 1, 2]


def test_what_can_not_be_kept_together_counts_for_none() -> None:
    core = Core()
    port = Batches(core)
    port.error = OSError("disk full")
    with pytest.raises(ProcessError, match="the dead letter Batches raised OSError: disk full"):
        worked_off(core, port, 3)
    assert core.done == []


def test_a_file_takes_them_with_one_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = FileDeadLetter(tmp_path)
    letters.dead_letter("job", "p", [Record(9_999, "x")], attempts=1, reason="bad")
    synced = []
    real = files.os.fsync
    counting = SimpleNamespace(**vars(files.os))
    counting.fsync = lambda descriptor: (synced.append(descriptor), real(descriptor))
    monkeypatch.setattr(files, "os", counting)
    worked_off(Core(), letters, 200)
    assert len(synced) == 1
    kept = letters.file_of("job").read().of("job")
    assert [letter.position for letter in kept] == [9_999, *range(200)]
    assert {letter.epoch for letter in kept[1:]} == {7}
    assert (kept[1].reason, kept[1].bolts, kept[1].value) == ("rejected: bad 0", ("b1",), "value 0")


def test_a_subclass_that_looks_at_each_of_them_still_does(tmp_path: Path) -> None:
    seen = []

    class Loud(FileDeadLetter):
        def dead_letter(self, *arguments: Any, **more: Any) -> None:
            seen.append(more["reason"])
            super().dead_letter(*arguments, **more)

    letters = Loud(tmp_path)
    worked_off(Core(), letters, 2)
    assert seen == ["rejected: bad 0", "rejected: bad 1"]
    assert len(letters.file_of("job").read().of("job")) == 2
