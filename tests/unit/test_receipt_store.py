"""The store of receipts: they are written before the checkpoint that counts them."""

from __future__ import annotations

import pytest

from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint, Receipts
from flowctl.errors import CheckpointUnavailableError, ConfigError, FencedError, InternalError
from flowctl.ports import CheckpointStore
from flowctl.runtime.memory_store import MemoryCheckpointStore
from flowctl.runtime.receipt_store import ReceiptStore
from flowctl.runtime.receipts import Entry, Segment, accepted


class Kept:
    """A manifest in memory that can be away."""

    where = "memory"

    def __init__(self) -> None:
        self.written: list[Segment] = []
        self.is_away = False

    def segments(self) -> list[Segment]:
        return self.written

    def newest_base(self) -> tuple[int, str] | None:
        return max(((one.epoch, one.token) for one in self.written if one.is_base), default=None)

    def append(self, segment: Segment) -> None:
        if self.is_away:
            raise CheckpointUnavailableError("away")
        self.written.append(segment)

    def forget_before(self, epoch: int, token: str) -> None:
        self.written = [one for one in self.written if (one.epoch, one.token) >= (epoch, token)]


@pytest.fixture
def manifest() -> Kept:
    return Kept()


def done_through(position: int) -> Checkpoint:
    return Checkpoint({"p": PartitionCheckpoint(position, position + 1)})


def test_it_is_a_store_that_keeps_receipts_and_survives(manifest: Kept) -> None:
    store: CheckpointStore = ReceiptStore(MemoryCheckpointStore(), manifest)
    assert store.entries() == ()
    assert store.survives


def test_nothing_is_saved_while_receipts_can_not_be_written(manifest: Kept) -> None:
    inner = MemoryCheckpointStore()
    store = ReceiptStore(inner, manifest)
    epoch = store.acquire("job")
    store.append([Receipts("p", 0, 10, 10, [b"a"])])
    manifest.is_away = True
    for _ in range(2):
        with pytest.raises(CheckpointUnavailableError):
            store.save("job", done_through(9), epoch=epoch)
    assert inner.load("job") == Checkpoint()
    manifest.is_away = False
    store.append([Receipts("p", 10, 12, 2, [b"b"])])
    store.save("job", done_through(11), epoch=epoch)
    assert [one.receipts for one in accepted(manifest.written)] == [(b"a",), (b"b",)]
    assert inner.load("job") == done_through(11)


def test_a_new_driver_adopts_receipts_that_no_checkpoint_counts(manifest: Kept) -> None:
    inner = MemoryCheckpointStore()
    store = ReceiptStore(inner, manifest)
    epoch = store.acquire("job")
    store.append([Receipts("p", 0, 10, 10, [b"a"])])
    store.save("job", Checkpoint(), epoch=epoch)  # killed before the checkpoint counted them
    again = ReceiptStore(inner, manifest)
    again.acquire("job")
    assert again.load("job") == done_through(9)
    assert len(manifest.written) == 1  # the base holds everything


def test_an_older_driver_is_fenced_without_a_server_too(manifest: Kept) -> None:
    old = ReceiptStore(MemoryCheckpointStore(), manifest)
    epoch = old.acquire("job")
    new = ReceiptStore(MemoryCheckpointStore(), manifest)
    assert new.acquire("job") > epoch
    old.append([Receipts("p", 0, 10, 10, [b"a"])])
    with pytest.raises(FencedError, match="taken over the results"):
        old.save("job", done_through(9), epoch=epoch)
    assert accepted(manifest.written) == []


def test_a_checkpoint_without_its_results_is_refused(manifest: Kept) -> None:
    inner = MemoryCheckpointStore()
    inner.save("job", done_through(9), epoch=inner.acquire("job"))
    with pytest.raises(ConfigError, match=r"p 0 to 9 .* no results.*checkpoint clear job"):
        ReceiptStore(inner, manifest).acquire("job")
    assert manifest.written == []


def test_what_waits_for_the_dead_letter_is_done_again_after_a_kill(manifest: Kept) -> None:
    store = ReceiptStore(MemoryCheckpointStore(), manifest)
    epoch = store.acquire("job")
    store.append([Receipts("p", 0, 10, 10, [b"a"], [0, 7])])
    store.save("job", Checkpoint(), epoch=epoch)
    again = ReceiptStore(MemoryCheckpointStore(), manifest)
    epoch = again.acquire("job")
    state = PartitionCheckpoint(None, 0, (AckedRange(1, 6, 6), AckedRange(8, 9, 2)))
    assert again.load("job") == Checkpoint({"p": state})
    again.append([Receipts("p", 0, 1, 1, [b"b"])])
    again.save("job", Checkpoint(), epoch=epoch)
    kept = [receipt for one in accepted(manifest.written) for receipt in one.receipts]
    assert sorted(kept) == [b"a", b"b"]


def test_what_the_dead_letter_keeps_stands_in_the_manifest_without_results(manifest: Kept) -> None:
    inner = MemoryCheckpointStore()
    store = ReceiptStore(inner, manifest)
    epoch = store.acquire("job")
    store.append([Receipts("p", 0, 10, 10, [b"a"], [7])])
    store.save("job", done_through(11), epoch=epoch)
    assert sorted(accepted(manifest.written), key=lambda one: one.start) == [
        Entry("p", 0, 7, 7, (b"a",)),
        Entry("p", 7, 8, 1),
        Entry("p", 8, 10, 2),
        Entry("p", 10, 12, 2),
    ]
    again = ReceiptStore(inner, manifest)
    again.acquire("job")
    assert again.load("job") == done_through(11)


def test_receipts_that_come_too_late_are_an_error_and_not_lost_in_silence(manifest: Kept) -> None:
    store = ReceiptStore(MemoryCheckpointStore(), manifest)
    epoch = store.acquire("job")
    store.save("job", done_through(9), epoch=epoch)
    with pytest.raises(InternalError, match="settled before"):
        store.append([Receipts("p", 5, 15, 10, [b"a"])])


def test_receipts_of_a_part_that_is_all_rejected_are_kept(manifest: Kept) -> None:
    store = ReceiptStore(MemoryCheckpointStore(), manifest)
    epoch = store.acquire("job")
    store.append([Receipts("p", 3, 4, 1, [b"a"], [3])])
    store.save("job", Checkpoint(), epoch=epoch)
    assert [one.receipts for one in accepted(manifest.written)] == [(b"a",)]
    again = ReceiptStore(MemoryCheckpointStore(), manifest)
    again.acquire("job")
    assert again.load("job") == Checkpoint()


def test_what_bolts_had_finished_is_named_by_the_next_driver_unless_it_overlaps(
    manifest: Kept,
) -> None:
    first = ReceiptStore(MemoryCheckpointStore(), manifest)
    epoch = first.acquire("job")
    first.append([Receipts("p", 0, 10, 10, [b"a"])])
    first.save("job", done_through(9), epoch=epoch)
    asked: list[int] = []

    def unnamed(of: int) -> list[Entry]:
        asked.append(of)
        spans = [(15, 30), (9, 12), (10, 20), (30, 32)]
        return [Entry("p", *span, span[1] - span[0], (str(span).encode(),)) for span in spans]

    second = ReceiptStore(MemoryCheckpointStore(), manifest, unnamed)
    second.acquire("job")
    assert asked == [epoch]
    kept = [(one.start, one.stop, one.records) for one in accepted(manifest.written)]
    assert kept == [(0, 10, 10), (15, 32, 17)]
    acked = (AckedRange(15, 31, 17),)
    assert second.load("job").partitions == {"p": PartitionCheckpoint(9, 10, acked)}


def test_nothing_is_adopted_where_no_driver_of_the_job_was(manifest: Kept) -> None:
    unnamed: list[int] = []
    ReceiptStore(MemoryCheckpointStore(), manifest, lambda of: unnamed.append(of) or ()).acquire(
        "job"
    )
    assert unnamed == []
