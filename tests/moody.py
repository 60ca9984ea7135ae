"""What a target of ``test_flow_sink_letters`` knows: a module that functions find by its name, as
they are pickled by value."""

from __future__ import annotations

from collections import Counter

MOODS: dict[int, str] = {}  # of rows that are not simply taken
TAKEN: Counter[int] = Counter()
