"""A listener and a dead letter that keep what they are told, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowctl.core.messages import Emission
from flowctl.core.records import Checkpoint, Record


class Letters:
    """Keeps letters in a list; raises ``error`` if there is one."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str, list[Any], int, str]] = []
        self.error: Exception | None = None
        self.closed = 0

    def dead_letter(
        self, job: str, partition: str, records: Sequence[Record], *, attempts: int, reason: str
    ) -> None:
        if self.error is not None:
            raise self.error
        self.kept.append((job, partition, [r.position for r in records], attempts, reason))

    def close(self) -> None:
        self.closed += 1


class Log:
    """A listener that notes what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.emissions: list[Emission] = []

    def on_open(self, job: str, restored: Checkpoint) -> None:
        self.said.append(("open", job))

    def on_emit(self, emission: Emission) -> None:
        self._note("emit", emission)

    def on_ack(self, emission: Emission) -> None:
        self._note("ack", emission)

    def on_retry(self, emission: Emission, reason: str) -> None:
        self._note("retry", emission)

    def on_max_retry_reached(self, emission: Emission, reason: str) -> None:
        self._note("max", emission)

    def _note(self, what: str, emission: Emission) -> None:
        self.said.append((what, emission.records[0].position))
        self.emissions.append(emission)

    def of(self, position: int) -> list[str]:
        return [what for what, *about in self.said if about == [position]]
