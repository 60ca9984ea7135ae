"""The packages that were asked for are used by product or tests, and pinned (S115)."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")  # of Python 3.11
ROOT = Path(__file__).parents[2]
PRODUCT = [*(ROOT / "flowctl").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]
TESTS = [path for path in (ROOT / "tests").rglob("*.py") if path.name != Path(__file__).name]


@cache
def used_names(path: Path) -> frozenset[str]:
    """Top-level modules that a file imports and of which it then uses something."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound[alias.asname or alias.name.partition(".")[0]] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                bound[alias.asname or alias.name] = node.module
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return frozenset(module.partition(".")[0] for name, module in bound.items() if name in named)


@pytest.mark.req("S115")
@pytest.mark.parametrize(
    ("package", "files"),
    [
        ("pyspark", PRODUCT),
        ("redis", PRODUCT),
        ("structlog", PRODUCT),
        ("msgspec", PRODUCT),  # it is our msgpack: one dependency for types, checks and bytes
        ("pytest", TESTS),
        ("fakeredis", TESTS),
    ],
)
def test_it_is_declared_pinned_and_used(package: str, files: list[Path]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {re.split(r"[^A-Za-z0-9-]", line)[0] for group in groups for line in group}
    assert package in declared
    pins = (ROOT / "constraints.txt").read_text()
    assert re.search(rf"^{package}==\d[\w.]*( ;|$)", pins, re.MULTILINE)
    assert any(package in used_names(path) for path in files)


@pytest.mark.req("S115", "S120")
def test_what_goes_over_the_wire_and_into_the_store_is_msgpack() -> None:
    """The bytes of msgpack's specification: a fixarray of three, an array of records."""
    import msgspec

    from flowctl.core.messages import Emission, Revoke
    from flowctl.core.records import Record
    from flowctl.wire.codec import LENGTH_BYTES, FrameWriter

    writer = FrameWriter(1 << 20)
    writer.append(Revoke("b1", [1, 2]))
    assert bytes(writer.take())[LENGTH_BYTES:] == b"\x93\x07\xa2b1\x92\x01\x02"
    writer.append(Emission(7, "b1", 1, "p", [Record(5, "x")], None, 0))
    assert msgspec.msgpack.decode(bytes(writer.take())[LENGTH_BYTES:]) == [
        3, 7, "b1", 1, "p", [[5, "x"]], None, 0, None,
    ]  # fmt: skip


@pytest.mark.req("S120")
def test_nothing_of_ours_reads_a_pickle_but_what_spark_carries() -> None:
    """Bolts get their code and their endpoint by Spark's own, trusted path; nothing else does."""
    readers = {
        str(path.relative_to(ROOT))
        for path in PRODUCT
        if re.search(r"^\s*(import|from) (cloud)?pickle\b|marshal\b", path.read_text(), re.M)
    }
    on_spark = ("adapters/pyspark_flowctl/", "adapters/flowctl_storm/spark_stages.py")
    assert all(reader.startswith(on_spark) for reader in readers), readers
