"""MarkedLetters holds to what every producer must do."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowctl.core.records import Record
from flowctl.ports import FlowProducer
from flowctl.testing.producer_conformance import ProducerConformance
from flowctl_files import FileDeadLetter, MarkedLetters


@pytest.mark.req("S22")
class TestMarkedLetters(ProducerConformance):
    @pytest.fixture(autouse=True)
    def letters(self, tmp_path: Path) -> None:
        """Two redrives of three letters, and one letter that is not marked."""
        self.place = tmp_path
        kept = FileDeadLetter(tmp_path)
        for first in (0, 10):
            records = [Record(first + n, {"n": first + n}) for n in range(3)]
            kept.dead_letter("orders", "p", records, attempts=1, reason="bad")
            file = kept.file_of("orders")
            file.redrive("orders", {letter.id for letter in file.read().of("orders")})
        kept.dead_letter("orders", "p", [Record(99, "new")], attempts=1, reason="bad")

    def producer(self) -> FlowProducer:
        return MarkedLetters("orders", self.place)
