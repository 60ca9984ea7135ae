"""What targets of flow_sink's tests know: a module that functions find by its name, as they are
pickled by value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

MOODS: dict[int, str] = {}  # of rows that are not simply taken
TAKEN: Counter[int] = Counter()
DOERS: list[Callable[[Any], None]] = []  # the newest gets the batches of test_spark_writes_rig
