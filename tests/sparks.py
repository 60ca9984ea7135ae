"""Which door works on which Spark: what test_sparks asserts, and the tables of docs/versions.md.

``python -m tests.sparks``, which ``make sparks`` runs after the tests of each Spark, writes there
what that Spark was tested with, and the table of doors.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "versions.md"
SPARKS: Final = ("3.5", "4.0", "4.1", "4.2", "4.3")
# From which Spark on; before it, its test in test_sparks.py shows what is said instead.
DOORS: Final = {
    "`SparkBolts`, by value": "3.5",
    "`SparkBolts`, by ranges": "3.5",
    "`SparkStages` of a topology": "3.5",
    "`apply`": "3.5",
    "`df.foreachPartition(flow_sink(…))`": "3.5",
    "`flow_sink(…).write(df)`": "3.5",
    "`paced` in `foreachPartition`": "3.5",
    "`writeStream.foreachBatch(flow_batch(…))`": "3.5",
    '`df.write.format("flowctl")`': "4.0",
    '`writeStream.format("flowctl")`': "4.0",
    '`readStream.format("flowctl")`': "4.2",
}
_HEAD: Final = "| Spark | tested with |\n|---|---|"
_BESIDE: Final = ("pandas", "pyarrow", "numpy")


def has(version: str, door: str) -> bool:
    """Whether ``door`` works on the Spark of that version ("4.1.2", or "4.1")."""
    return _number(version) >= _number(DOORS[door])


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def doors_table() -> str:
    """A door in each row, a Spark in each column."""
    rows = [
        f"| {door} | " + " | ".join("yes" if has(s, door) else "no" for s in SPARKS) + " |"
        for door in DOORS
    ]
    return "\n".join(["| door | " + " | ".join(SPARKS) + " |", "|---" * 6 + "|", *rows])


def tested_with(spark: str, java: str) -> str:
    """The row of the Spark of this Python."""
    beside = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _BESIDE)
    return f"| {spark} | Python {platform.python_version()}, Java {java}, {beside} |"


def with_row(page: str, row: str) -> str:
    """``page`` with ``row`` in the place of the one of the same minor version."""
    before, head, rest = page.partition(_HEAD)
    table, _, after = rest.lstrip("\n").partition("\n\n")
    minor = ".".join(row.split()[1].split(".")[:2])
    others = [line for line in table.splitlines() if not line.startswith(f"| {minor}.")]
    return f"{before}{head}\n" + "\n".join(sorted([*others, row])) + f"\n\n{after}"


def with_doors(page: str) -> str:
    """``page`` with the table of doors as it is now."""
    before, head, rest = page.partition("| door |")
    return before + doors_table() + "\n\n" + rest.partition("\n\n")[2] if head else page


def main() -> int:
    import pyspark

    from pyspark_flowctl.java import java_home

    page = PAGE.read_text(encoding="utf-8")
    row = tested_with(pyspark.__version__, java_home().version)
    PAGE.write_text(with_doors(with_row(page, row)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
