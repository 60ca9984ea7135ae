"""Records holds to what every producer must do, over whatever can be iterated twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowctl import Records
from flowctl.ports import FlowProducer
from flowctl.testing.producer_conformance import ProducerConformance

VALUES = ["one", {"two": 2}, None, 4, b"five", [6]]


@pytest.mark.req("S22")
class TestAList(ProducerConformance):
    def producer(self) -> FlowProducer:
        return Records(VALUES)


@pytest.mark.req("S22")
class TestAGeneratorFunction(ProducerConformance):
    def producer(self) -> FlowProducer:
        def values() -> Iterator[object]:
            yield from VALUES

        return Records(values, partition="other")


@pytest.mark.req("S22")
class TestValuesOfADict(ProducerConformance):
    """Has a length and no places: what is done is walked over."""

    def producer(self) -> FlowProducer:
        return Records(dict(enumerate(VALUES)).values())
