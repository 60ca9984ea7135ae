"""What every :class:`flowctl.ports.CheckpointStore` must do, as tests for adapter authors to
inherit.

.. code-block:: python

    class TestMyStore(CheckpointStoreConformance):
        @pytest.fixture
        def store_factory(self):
            server = an_empty_server()
            return lambda: MyStore(server)

Each call of ``store_factory`` is another driver over the same storage, which is empty when a
test begins.  :func:`check_against_model` compares long random runs with a plain model; it needs
hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from flowctl.core.records import (
    AckedRange,
    Checkpoint,
    LostRange,
    PartitionCheckpoint,
    Position,
)
from flowctl.errors import ConfigError, FencedError, InternalError
from flowctl.ports import CheckpointStore

StoreFactory: TypeAlias = Callable[[], CheckpointStore]

# Each list holds one partition's positions in rising order; together they cover all shapes.
RISING_POSITIONS: tuple[tuple[Position, ...], ...] = (
    (-(1 << 63), -256, -1, 0, 1, 255, 256, (1 << 63) - 1),
    (-1e300, -1.5, 0.0, 5e-324, 1.5, float("inf")),
    ("", "\0", "\0a", "A", "B", "a", "aa", "b", "ß", "é", "日本", "😀"),
    ((1, 2), (1, 10), (2, 0), (10, 0)),
    (("a", None), ("a", 1), ("a", 2), ("a\0", None), ("b", None)),
    ((1.5, "x"), (1.5, "y"), (2.5, "a")),
)
PARTITIONS_MANY = 5_000  # a directory of many files: a store must not answer for each alone
RANGES_MANY = 10_000  # far more holes than a run has; they must come back whole


class CheckpointStoreConformance:
    """Inherit, and give a ``store_factory`` fixture."""

    def test_nothing_stored_is_an_empty_checkpoint(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        assert store.load("job") == Checkpoint()
        assert list(store.jobs()) == []

    def test_what_was_saved_is_loaded_by_another_driver(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        epoch = store.acquire("job")
        store.save("job", _EXAMPLE, epoch=epoch)
        assert store.load("job") == _EXAMPLE
        assert store_factory().load("job") == _EXAMPLE
        assert list(store.jobs()) == ["job"]

    def test_acquiring_alone_stores_nothing(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        store.acquire("job")
        assert list(store.jobs()) == []
        assert store.load("job") == Checkpoint()

    def test_jobs_do_not_touch_each_other(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        names = ["job", "job2", "jo", "j*b", "a{b}c", "日本 log", "x:y"]
        for number, name in enumerate(names):
            store.save(name, _at(number), epoch=store.acquire(name))
        assert sorted(store.jobs()) == sorted(names)
        assert [store.load(name) for name in names] == [_at(n) for n in range(len(names))]
        assert store.clear("job")
        assert store.load("job2") == _at(1)

    def test_epochs_rise_over_all_drivers(self, store_factory: StoreFactory) -> None:
        one, other = store_factory(), store_factory()
        epochs = [one.acquire("job"), other.acquire("job"), one.acquire("job")]
        assert epochs == sorted(set(epochs))

    def test_an_older_driver_is_fenced_and_changes_nothing(
        self, store_factory: StoreFactory
    ) -> None:
        zombie, store = store_factory(), store_factory()
        old = zombie.acquire("job")
        zombie.save("job", _at(1), epoch=old)
        new = store.acquire("job")
        with raises(FencedError):
            zombie.save("job", _at(2), epoch=old)
        assert store.load("job") == _at(1)
        store.save("job", _at(3), epoch=new)
        with raises(FencedError):
            zombie.save("job", _at(4), epoch=old)
        assert store.load("job") == _at(3)

    def test_positions_never_go_back(self, store_factory: StoreFactory) -> None:
        for number, positions in enumerate(RISING_POSITIONS):
            store, job = store_factory(), f"job{number}"
            epoch = store.acquire(job)
            store.save(job, _at(None), epoch=epoch)
            for before, after in zip((None, *positions), positions, strict=False):
                store.save(job, _at(after), epoch=epoch)
                store.save(job, _at(after), epoch=epoch)
                with raises(InternalError):
                    store.save(job, _at(before), epoch=epoch)
                assert store_factory().load(job) == _at(after)

    def test_a_refused_save_writes_none_of_its_partitions(
        self, store_factory: StoreFactory
    ) -> None:
        store = store_factory()
        epoch = store.acquire("job")
        store.save("job", _partitions(a=5, b=5), epoch=epoch)
        with raises(InternalError):
            store.save("job", _partitions(a=6, b=4, c=1), epoch=epoch)
        assert store.load("job") == _partitions(a=5, b=5)
        store.save("job", _partitions(a=6, b=5), epoch=epoch)
        assert store_factory().load("job") == _partitions(a=6, b=5)

    def test_partitions_that_are_not_named_are_kept(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        epoch = store.acquire("job")
        store.save("job", _partitions(a=1, b=1), epoch=epoch)
        store.save("job", _partitions(b=2), epoch=epoch)
        store.save("job", _partitions(a=3), epoch=epoch)
        assert store.load("job") == _partitions(a=3, b=2)

    def test_a_change_above_the_cumulative_ack_is_saved(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        epoch = store.acquire("job")
        for last in (5, 6, 5):
            holes = PartitionCheckpoint(1, 1, (AckedRange(3, last, last - 2),))
            store.save("job", Checkpoint({"a": holes}), epoch=epoch)
            assert store_factory().load("job").partitions == {"a": holes}

    def test_the_callers_dicts_stay_the_callers(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        epoch = store.acquire("job")
        checkpoint = _partitions(a=1)
        store.save("job", checkpoint, epoch=epoch)
        checkpoint.partitions["a"] = PartitionCheckpoint(2, 2)
        assert store.load("job") == _partitions(a=1)
        store.save("job", checkpoint, epoch=epoch)
        assert store_factory().load("job") == checkpoint

    def test_rewind_sets_one_partition_back_and_fences(self, store_factory: StoreFactory) -> None:
        store, operator = store_factory(), store_factory()
        epoch = store.acquire("job")
        store.save("job", _partitions(a=5, b=5), epoch=epoch)
        operator.rewind("job", "a", 3)
        with raises(FencedError):
            store.save("job", _partitions(a=6), epoch=epoch)
        loaded = store.load("job").partitions
        assert loaded["a"].position == 3 and loaded["a"].acked == ()
        assert loaded["b"] == PartitionCheckpoint(5, 5)
        operator.rewind("job", "a", None)
        assert store.load("job").partitions["a"] == PartitionCheckpoint()
        store.save("job", _partitions(a=1, b=5), epoch=store.acquire("job"))
        assert store_factory().load("job") == _partitions(a=1, b=5)

    def test_an_end_is_kept_until_the_partition_is_set_back(
        self, store_factory: StoreFactory
    ) -> None:
        store = store_factory()
        for end in (7, "etag", (1 << 40, None)):
            ended = Checkpoint({"a": PartitionCheckpoint(5, 5, end=end)})
            store.save("job", ended, epoch=store.acquire("job"))
            assert store_factory().load("job") == ended
            for position in (5, 3):
                store.rewind("job", "a", position)
                assert store.load("job").partitions["a"].end is None

    def test_what_was_lost_counts_until_the_partition_is_set_back_before_it(
        self, store_factory: StoreFactory
    ) -> None:
        """Rejected records that are kept nowhere are reported; once done again, they count no
        more.
        """
        store = store_factory()
        at: Position
        for at in (4, (7, "x"), "id"):
            state = PartitionCheckpoint(at, 5, lost=(LostRange(at, at, 2),))
            store.save("job", Checkpoint({str(at): state}), epoch=store.acquire("job"))
            assert store_factory().load("job").partitions[str(at)] == state
        places = (LostRange(2, 2, 1), LostRange(4, 5, 2), LostRange(8, 8, 0))
        ranges = (AckedRange(8, 9, 2),)
        state = PartitionCheckpoint(6, 6, ranges, lost=places)
        store.save("job", Checkpoint({"a": state}), epoch=store.acquire("job"))
        assert store_factory().load("job").partitions["a"] == state
        for position, nowhere in ((6, 3), (3, 1)):
            store.rewind("job", "a", position)
            found = store_factory().load("job").partitions["a"]
            # A sink treats no record as written that it does not know of.
            assert (found.records_kept_nowhere, found.given_up) == (nowhere, position)
        store.rewind("job", "a", None)
        assert store.load("job").partitions["a"] == PartitionCheckpoint()

    def test_a_mark_is_kept_until_the_partition_is_set_back(
        self, store_factory: StoreFactory
    ) -> None:
        """Also among thousands of partitions, which a store may keep in another way."""
        marked = Checkpoint({"a": PartitionCheckpoint(5, 5, mark=(7, "first", "last"))})
        store = store_factory()
        store.save("job", marked, epoch=store.acquire("job"))
        assert store_factory().load("job") == marked
        store.rewind("job", "a", 3)
        assert store.load("job").partitions["a"].mark is None
        many = {
            str(number): PartitionCheckpoint(5, 5, mark=number or None) for number in range(5000)
        }
        epoch = store.acquire("many")
        store.save("many", Checkpoint(many), epoch=epoch)
        for number in range(3):
            many["new"] = PartitionCheckpoint(number, number)
            store.save("many", Checkpoint({"new": many["new"]}), epoch=epoch)
        assert store_factory().load("many") == Checkpoint(many)

    def test_rewind_refuses_what_makes_no_sense(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        with raises(ConfigError):
            store.rewind("job", "a", 1)
        epoch = store.acquire("job")
        store.save("job", _partitions(a=5), epoch=epoch)
        for partition, position in (("other", 1), ("a", 6)):
            with raises(ConfigError):
                store.rewind("job", partition, position)
        store.save("job", _partitions(a=6), epoch=epoch)  # a refused rewind fences no driver

    def test_clear_forgets_all_but_the_epoch(self, store_factory: StoreFactory) -> None:
        store, operator = store_factory(), store_factory()
        assert operator.clear("job") is False
        epoch = store.acquire("job")
        store.save("job", _EXAMPLE, epoch=epoch)
        assert operator.clear("job") is True
        assert operator.clear("job") is False
        with raises(FencedError):
            store.save("job", _EXAMPLE, epoch=epoch)
        assert store.load("job") == Checkpoint()
        assert list(store.jobs()) == []
        newer = store.acquire("job")
        assert newer > epoch
        store.save("job", _at(0), epoch=newer)
        assert operator.load("job") == _at(0)

    def test_many_partitions_and_many_ranges(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        epoch = store.acquire("job")
        partitions = {
            f"logs/{number}.log": PartitionCheckpoint((number, number), number)
            for number in range(PARTITIONS_MANY)
        }
        ranges = tuple(AckedRange((n, 0), (n, 9), 10) for n in range(1, RANGES_MANY + 1))
        partitions["holes"] = PartitionCheckpoint((0, 0), 1, ranges)
        store.save("job", Checkpoint(partitions), epoch=epoch)
        partitions["logs/7.log"] = PartitionCheckpoint((8, 0), 8)
        store.save("job", Checkpoint(partitions), epoch=epoch)
        assert store_factory().load("job") == Checkpoint(partitions)


@contextmanager
def raises(kind: type[Exception]) -> Iterator[None]:
    """Check that the block raises ``kind`` with a readable message."""
    try:
        yield
    except kind as error:
        assert str(error)
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def check_against_model(store_factory: StoreFactory, *, examples: int = 30) -> None:
    """Run random calls by two drivers on the store and on a plain model; they must agree.

    Each example finds ``store_factory``'s storage as the last one left it, under new job names.
    """
    from flowctl.testing.store_model import run

    run(store_factory, examples=examples)


def _at(position: Position | None) -> Checkpoint:
    return Checkpoint({"a": PartitionCheckpoint(position, 1)})


def _partitions(**positions: int) -> Checkpoint:
    return Checkpoint({name: PartitionCheckpoint(at, at) for name, at in positions.items()})


_EXAMPLE = Checkpoint(
    partitions={
        "logs/a.log": PartitionCheckpoint((10, 1), 3, (AckedRange((20, 3), (40, 5), 3),)),
        "logs/ü.log": PartitionCheckpoint((0, 0), 0),
        "read to its end": PartitionCheckpoint((7, 1), 2, end=(12, 1_700_000_000_000_000_000)),
        "not begun": PartitionCheckpoint(),
        "not begun, but a hole": PartitionCheckpoint(None, 0, (AckedRange((1, 1), (1, 1), 1),)),
    },
)
