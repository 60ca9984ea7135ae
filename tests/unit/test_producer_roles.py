"""A producer only produces: it is never given, and never imports, a window, an ack or a bolt."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowctl.ports import FlowProducer

ADAPTERS = Path(__file__).parents[2] / "adapters"
SOURCES = [
    path
    for package in ("flowctl_files", "flowctl_kafka")
    for path in sorted((ADAPTERS / package).glob("*.py"))
    if path.name != "sink.py"
]
# The stream's own words, and what S87-S103 give to a source that commits by itself; letters are
# for the dead letters that live beside our sources, which write values as the wire does.  What an
# error means, and which arguments are refused, is one table and one check for all.
MAY_IMPORT = {
    "flowctl.arguments",
    "flowctl.core.guarantee",
    "flowctl.core.letters",
    "flowctl.core.ranges.extent",
    "flowctl.core.records",
    "flowctl.errors",
    "flowctl.failure.classify",
    "flowctl.logs",
    "flowctl.ports",
    "flowctl.range_ports",
    "flowctl.wire.values",
}
STREAM_NAMES = {
    "NOTHING",
    "AckedRange",
    "Checkpoint",
    "ColumnRecords",
    "Extent",
    "Fields",
    "PartitionCheckpoint",
    "Position",
    "Record",
}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


@pytest.mark.req("S22")
def test_the_port_asks_for_the_stream_and_hands_over_nothing_but_the_checkpoint() -> None:
    calls = {
        name: list(inspect.signature(method).parameters)[1:]
        for name, method in vars(FlowProducer).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    assert calls == {
        "partitions": [],
        "open": ["checkpoint"],
        "poll": ["max_records"],
        "close": [],
    }


@pytest.mark.req("S22")
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_our_producers_import_no_window_ack_or_bolt(path: Path) -> None:
    for module, name in imports(path):
        if not module.startswith("flowctl."):
            continue
        assert module in MAY_IMPORT, f"{module} is no business of a producer"
        if module == "flowctl.core.records":
            assert name in STREAM_NAMES, f"{name} is no business of a producer"
