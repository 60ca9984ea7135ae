"""Which offsets may be committed: holes block, what does not exist is jumped."""

from __future__ import annotations

import pytest

from flowctl.core.offsets import Next, OffsetManager
from flowctl.errors import InternalError, SourceError


def manager(*offsets: int, committed: int | None = None) -> OffsetManager:
    made = OffsetManager("p", committed)
    for offset in offsets:
        assert made.add(offset)
    return made


@pytest.mark.req("S99")
def test_the_next_contiguous_one_and_holes_block() -> None:
    made = manager(1, 2, 3, 4)
    assert made.next_commit() is None
    for offset in (1, 3, 4):
        made.ack(offset)
    assert made.next_commit() == 1
    made.ack(2)
    assert made.next_commit() == 4


@pytest.mark.req("S99")
def test_offsets_that_do_not_exist_are_jumped() -> None:
    made = manager(5, 9, 1_000_000, committed=1)
    made.ack(9)
    assert made.next_commit() is None
    made.ack(5)
    assert made.next_commit() == 9
    made.ack(1_000_000)
    assert made.next_commit() == 1_000_000


@pytest.mark.req("S99")
def test_nothing_new_is_nothing_to_commit() -> None:
    made = manager(1, 2)
    made.ack(1)
    assert made.commit(1) == 1
    assert made.next_commit() is None


@pytest.mark.req("S101")
def test_a_commit_drops_what_it_covers_and_lowers_the_count() -> None:
    made = manager(1, 2, 3, 4)
    for offset in (1, 2, 4):
        made.ack(offset)
    assert made.uncommitted == 4
    assert made.commit(2) == 2
    assert (made.uncommitted, made.committed) == (2, 2)
    made.ack(3)
    assert made.commit(4) == 2
    assert made.uncommitted == 0


@pytest.mark.req("S99", "S101")
def test_a_commit_beyond_a_hole_is_a_defect_also_when_only_offset_0_is_done() -> None:
    """Offset 0 is an offset like others: with 0 acked and 1 not, 5 must not be committed."""
    made = manager(0, 1, 5)
    made.ack(0)
    made.ack(5)
    for offset in (1, 5):
        with pytest.raises(InternalError, match="not all acked"):
            made.commit(offset)
    assert made.commit(0) == 1


@pytest.mark.parametrize("offset", [2, 3])
def test_a_commit_beyond_a_hole_is_a_defect(offset: int) -> None:
    made = manager(1, 2, 3)
    made.ack(1)
    made.ack(3)
    with pytest.raises(InternalError, match="not all acked"):
        made.commit(offset)


@pytest.mark.req("S102")
def test_what_to_do_with_a_record_that_was_read_again() -> None:
    made = manager(1, 2, 3, committed=0)
    made.ack(2)
    new = {"has_failed": False, "is_ready": False}
    assert made.decide(2, **new) is Next.SKIP_ACKED
    assert made.decide(3, **new) is Next.SKIP_PENDING
    assert made.decide(4, **new) is Next.EMIT


@pytest.mark.req("S102")
def test_below_the_commit_is_an_illegal_state() -> None:
    made = manager(1, 2)
    made.ack(1)
    made.commit(1)
    for emit in (lambda: made.add(1), lambda: made.decide(1, has_failed=False, is_ready=False)):
        with pytest.raises(InternalError, match="would be emitted again"):
            emit()


@pytest.mark.req("S104")
def test_what_failed_is_emitted_only_when_its_time_has_come() -> None:
    made = manager(1)
    assert made.decide(1, has_failed=True, is_ready=False) is Next.WAIT
    assert made.decide(1, has_failed=True, is_ready=True) is Next.EMIT
    assert made.add(1) is False, "it goes again: the same entry"
    assert made.uncommitted == 1


@pytest.mark.req("S108")
def test_acks_of_what_is_not_known_or_done_change_nothing() -> None:
    made = manager(1)
    assert not made.ack(7)
    assert made.ack(1)
    assert not made.ack(1)
    assert made.next_commit() == 1


@pytest.mark.req("S94")
def test_a_due_retry_among_the_first_is_never_starved_by_the_limit() -> None:
    made = manager(1, 2, 3, 4, 5)
    assert made.may_poll(6, None)
    assert not made.may_poll(5, None)
    assert not made.may_poll(3, 4)
    assert made.may_poll(3, 3)
    assert made.may_poll(3, 1)


@pytest.mark.req("S97")
def test_what_compaction_took_is_acked_unless_it_is_in_flight() -> None:
    made = manager(1, 2, 3, 4, 5)
    made.ack(2)
    gone = made.vanish(1, 5, in_flight={3})
    assert gone == [1, 4]
    assert made.next_commit() == 2
    made.ack(3)
    assert made.next_commit() == 4
    assert made.is_pending(5)


@pytest.mark.req("S97")
def test_nothing_vanished_when_what_was_sought_was_found() -> None:
    made = manager(1, 2, 3)
    assert made.vanish(2, 2, in_flight=()) == []
    assert made.is_pending(1), "what lies below was not sought"


def test_offsets_must_rise() -> None:
    made = manager(5)
    with pytest.raises(SourceError, match="must rise"):
        made.add(4)
