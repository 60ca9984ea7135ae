"""The offset manager against a naive model: sets, and a walk from the start each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.core.offsets import OffsetManager

OFFSETS = st.lists(st.integers(0, 200), unique=True, max_size=40).map(sorted)


@pytest.mark.req("S99", "S101", "S108")
@given(OFFSETS, st.data())
def test_it_commits_what_a_walk_from_the_start_would(
    offsets: list[int], data: st.DataObject
) -> None:
    manager = OffsetManager("p")
    emitted: list[int] = []
    acked: set[int] = set()
    committed = -1
    for _ in range(3 * len(offsets)):
        step = data.draw(st.sampled_from(["emit", "ack", "commit"]))
        if step == "emit" and len(emitted) < len(offsets):
            emitted.append(offsets[len(emitted)])
            manager.add(emitted[-1])
        elif step == "ack":
            offset = data.draw(st.sampled_from(offsets))
            known = offset in emitted and offset not in acked
            assert manager.ack(offset) is known
            acked |= {offset} if known else set()
        elif step == "commit" and (found := manager.next_commit()) is not None:
            dropped = [offset for offset in emitted if committed < offset <= found]  # type: ignore[operator]
            assert manager.commit(found) == len(dropped)
            committed = found  # type: ignore[assignment]
        walk = committed
        for offset in emitted:
            if offset > committed:
                if offset not in acked:
                    break
                walk = offset
        assert manager.next_commit() == (None if walk == committed else walk)
        assert manager.uncommitted == sum(offset > committed for offset in emitted)
