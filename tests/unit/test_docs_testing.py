"""docs/testing.md: its example runs, and says what is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from flowctl.testing.processes import QUICK, LocalRun

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]


def test_each_test_of_the_example_passes_by_itself() -> None:
    tests = re.findall(r"^def (test_\w+)", EXAMPLE, re.MULTILINE)
    assert len(tests) == 2
    for name in tests:
        names: dict[str, Any] = {}
        exec(compile(EXAMPLE, "docs/testing.md", "exec"), names)
        names[name]()


def test_the_table_is_the_result() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(LocalRun.__struct_fields__)


def test_the_settings_that_are_named_are_those_of_the_code() -> None:
    assert "two attempts (`retry.attempts_max`)" in PAGE and QUICK["retry.attempts_max"] == 2
    assert "after 2 s (`retry.give_up_after_s`)" in PAGE and QUICK["retry.give_up_after_s"] == 2.0
