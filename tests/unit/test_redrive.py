"""Letters come first, under a partition of their own, and go once the saved checkpoint has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from flowctl.core.letters import redrive_partition, without_redrives
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import InfrastructureError
from flowctl.ports import SharingProducer, SourceHost
from flowctl.runtime.redrive import Redriven, with_letters_first
from flowctl_files import FileDeadLetter
from flowctl_storm.topology_job import sources_of
from tests.listener_parts import Letters
from tests.runtime_parts import ListProducer

NUMBER = 1_700_000_000_000


def letters_of(tmp_path: Path, count: int, partition: str = "p") -> FileDeadLetter:
    letters = FileDeadLetter(tmp_path)
    records = [Record(n, f"record {n}") for n in range(10, 10 + count)]
    letters.dead_letter("job", partition, records, attempts=3, reason="bad")
    return letters


def left(letters: FileDeadLetter) -> list[object]:
    return [letter.position for letter in letters.file_of("job").read().of("job")]


def wrapped(
    letters: object, producer: object = None, restored: Checkpoint | None = None
) -> Redriven:
    return with_letters_first(
        producer or ListProducer(3),  # type: ignore[arg-type]
        letters,  # type: ignore[arg-type]
        job="job",
        restored=restored or Checkpoint(),
    )


def test_letters_are_polled_first_then_the_source(tmp_path: Path) -> None:
    letters = letters_of(tmp_path, 5)
    number = letters.file_of("job").redrive("job")[1]
    source = wrapped(letters)
    assert source.waiting == 5 and source.headline() == "5 dead letters to process again first"
    source.open(Checkpoint())
    polled = []
    while (chunk := source.poll(2)) is not None:
        polled.append((chunk.partition, [(r.position, r.value) for r in chunk.records]))
    name = redrive_partition(number)
    assert polled == [
        (name, [(1, "record 10"), (2, "record 11")]),
        (name, [(3, "record 12"), (4, "record 13")]),
        (name, [(5, "record 14")]),
        ("p", [(1, "record 1"), (2, "record 2")]),
        ("p", [(3, "record 3")]),
    ]
    assert source.partitions() == [name, "p"]


def test_they_go_as_far_as_the_saved_checkpoint_covers_them(tmp_path: Path) -> None:
    letters = letters_of(tmp_path, 6)
    number = letters.file_of("job").redrive("job")[1]
    name = redrive_partition(number)
    source = wrapped(letters)
    source.settle(Checkpoint({"p": PartitionCheckpoint(3, 3)}))
    source.settle(Checkpoint({name: PartitionCheckpoint()}))
    assert len(left(letters)) == 6
    source.settle(Checkpoint({name: PartitionCheckpoint(1, 1, (AckedRange(3, 4, 2),))}))
    assert left(letters) == [11, 14, 15]
    again = wrapped(FileDeadLetter(tmp_path))  # killed, and run again
    chunk = again.poll(99)
    assert chunk is not None and [r.position for r in chunk.records] == [2, 5, 6]
    again.settle(Checkpoint({name: PartitionCheckpoint(6, 6)}))
    assert left(letters) == []


def test_killed_between_the_save_and_their_removal_they_are_not_run_again(tmp_path: Path) -> None:
    letters = letters_of(tmp_path, 3)
    name = redrive_partition(letters.file_of("job").redrive("job")[1])
    saved = Checkpoint({name: PartitionCheckpoint(2, 2)})
    source = wrapped(letters, restored=saved)
    assert left(letters) == [12] and source.waiting == 1
    chunk = source.poll(99)
    assert chunk is not None and [r.position for r in chunk.records] == [3]


def test_the_producer_hears_of_its_own_partitions_only() -> None:
    class Strict(ListProducer):
        def open(self, checkpoint: Checkpoint) -> None:
            assert set(checkpoint.partitions) == {"p"}
            super().open(checkpoint)

    restored = Checkpoint(
        {"p": PartitionCheckpoint(2, 2), redrive_partition(NUMBER): PartitionCheckpoint(9, 9),
         redrive_partition(NUMBER, "spout:"): PartitionCheckpoint(9, 9)},
    )  # fmt: skip
    for letters in (None, Letters()):  # also where nothing can be given back (any more)
        wrapped(letters, Strict(3), restored).open(restored)
    assert without_redrives(restored) == Checkpoint({"p": PartitionCheckpoint(2, 2)})


def test_what_can_not_be_removed_ends_nothing_and_is_told(tmp_path: Path) -> None:
    class Full(FileDeadLetter):
        def on_redriven(self, job: str, letters: Sequence[object]) -> None:
            raise OSError("disk full")

    letters_of(tmp_path, 2).file_of("job").redrive("job")
    full = Full(tmp_path)
    source = wrapped(full)
    (name,) = source.partitions()[:1]
    saved = Checkpoint({name: PartitionCheckpoint(2, 2)})
    source.settle(saved)
    source.settle(saved)
    assert "OSError: disk full" in source.problem
    assert left(full) == [10, 11]
    assert wrapped(FileDeadLetter(tmp_path), restored=saved).waiting == 0
    assert left(full) == []


def test_letters_that_can_not_be_read_end_the_run_before_it_begins() -> None:
    class Broken(FileDeadLetter):
        def to_redrive(self, job: str) -> Sequence[object]:  # type: ignore[override]
            raise PermissionError("not yours")

    with pytest.raises(
        InfrastructureError, match="Broken can't be read: PermissionError: not yours"
    ):
        wrapped(Broken("nowhere"))


def test_a_topologys_letters_go_to_their_spout_and_wait_if_it_is_gone(tmp_path: Path) -> None:
    letters = letters_of(tmp_path, 1, "clicks:p")
    letters.dead_letter("job", "views:p", [Record(1, "view")], attempts=1, reason="bad")
    number = letters.file_of("job").redrive("job")[1]
    source = wrapped(letters, sources_of({"clicks": ListProducer(1)}))
    assert source.partitions() == [f"clicks:redrive:{number}", "clicks:p"]
    assert source.headline() == (
        "1 dead letter to process again first, 1 dead letter of spouts that are gone"
    )
    source.settle(Checkpoint({f"clicks:redrive:{number}": PartitionCheckpoint(1, 1)}))
    assert left(letters) == [1]


class Sharing(ListProducer):
    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.kept = True
        self.host: SourceHost | None = None

    def attach(self, host: SourceHost) -> None:
        self.host = host

    def keep(self) -> bool:
        return self.kept


def test_a_producer_that_shares_may_lose_its_own_chunk_but_not_letters(tmp_path: Path) -> None:
    letters = letters_of(tmp_path, 1)
    letters.file_of("job").redrive("job")
    inner = Sharing(2)
    source = wrapped(letters, inner)
    assert isinstance(source, SharingProducer)
    assert not isinstance(wrapped(letters, ListProducer(1)), SharingProducer)
    inner.kept = False
    source.poll(9)
    assert source.keep()
    source.poll(9)
    assert not source.keep()
