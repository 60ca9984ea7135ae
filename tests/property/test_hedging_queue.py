"""Expected times come in order, whether they were known at the start or added later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowctl.core.end_of_input.phase import _Queue

_entries = st.lists(st.tuples(st.integers(0, 9).map(float), st.integers(0, 9)), max_size=8)


@given(_entries, st.lists(st.one_of(_entries, st.none()), max_size=12))
def test_the_earliest_comes_first_whenever_it_was_added(
    first: list[tuple[float, int]], steps: list[list[tuple[float, int]] | None]
) -> None:
    """A step adds entries, or takes the earliest out."""
    queue, model = _Queue(), sorted(first)
    queue.begin(first)
    for added in [*steps, *[None] * (len(model) + 1)]:
        for entry in added or ():
            queue.push(entry)
        model = sorted([*model, *(added or ())])
        earliest = queue.first()
        assert earliest == (model[0] if model else None)
        if added is None and earliest is not None:
            queue.drop(earliest)
            model.pop(0)
