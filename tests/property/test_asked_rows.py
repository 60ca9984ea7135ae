"""Which rows are asked next of a batch API, by its notes alone: wherever a driver was killed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from flowctl_apply._asking import Piece, Span, accepted, merged, wanted

FRESH: list[Span] = [("a", 0, 40), ("b", 3, 30)]
ROWS = {(name, at) for name, start, stop in FRESH for at in range(start, stop)}
ATTEMPTS = 3


def piece_of(number: int, attempt: int, rows: list[tuple[str, int]]) -> Piece:
    spans = merged((name, at, at + 1) for name, at in rows)
    return Piece(mark=f"m{number}", attempt=attempt, spans=spans, requests=len(rows), at_s=number)


@given(st.data())
def test_each_row_has_one_answer_wherever_it_is_killed(data: st.DataObject) -> None:
    """A piece is noted, then has an id, then is read: the notes are all that a driver goes by."""
    notes: dict[str, Piece] = {}
    answered: Counter[tuple[str, int]] = Counter()
    asked: Counter[tuple[str, int]] = Counter()
    for number in range(1_000):
        pieces = accepted(notes.values())
        more = wanted(FRESH, pieces)
        open_now = [one for one in pieces if one.is_open]
        if more is None and not open_now:
            break
        if more is not None and (not open_now or data.draw(st.booleans())):
            rows = [(name, at) for name, start, stop in more.spans for at in range(start, stop)]
            size = data.draw(st.integers(1, 30))
            noted = piece_of(number, more.attempt, rows[:size])
            notes[noted.mark] = noted
            asked.update(noted.rows())
            continue
        piece = data.draw(st.sampled_from(open_now))
        failed = [] if piece.attempt == ATTEMPTS else data.draw(
            st.lists(st.sampled_from(list(piece.rows())), unique=True)
        )  # fmt: skip
        answered.update(set(piece.rows()) - set(failed))
        again = merged((name, at, at + 1) for name, at in failed)
        notes[piece.mark] = Piece(
            mark=piece.mark, attempt=piece.attempt, spans=piece.spans, requests=piece.requests,
            at_s=piece.at_s, id="x", answers=[], again=again,
        )  # fmt: skip
    assert answered == Counter(ROWS)
    assert max(asked.values()) <= ATTEMPTS


def test_a_note_without_an_id_gives_way_to_one_that_has_its_rows() -> None:
    """A driver that was replaced noted it, and may not submit it."""
    left = piece_of(0, 1, [("a", 0), ("a", 1)])
    theirs = piece_of(1, 1, [("a", at) for at in range(1, 9)])
    other = piece_of(2, 1, [("b", 3)])
    with_id = Piece(mark="m1", attempt=1, spans=theirs.spans, requests=8, at_s=1, id="x")
    assert [one.mark for one in accepted([left, with_id, other])] == ["m1", "m2"]
    more = wanted(FRESH, accepted([left, with_id, other]))
    assert more is not None
    assert more.spans[0] == ("a", 0, 1)
