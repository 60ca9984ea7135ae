"""The rows of the control law are checked again when anything that they depend on has changed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows() -> Any:
    pytest.importorskip("grimp")
    spec = importlib.util.spec_from_file_location("control_rows", ROOT / ".ci/control_rows.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_they_depend_on_the_core_and_the_simulator_wherever_it_imports(rows: Any) -> None:
    found = rows.modules()
    assert {"flowctl.core.end_of_input.shares", "flowctl.simulation.catalogue"} <= found
    assert {"flowctl", "flowctl.core", "flowctl.config"} <= found
    assert "flowctl.core.ranges.core" in found, "imported in a function only"
    assert not {"flowctl.runtime.sender", "flowctl.cli.main"} & found
    assert all(path.is_file() for path in rows.files(found))


def test_another_byte_is_another_digest(rows: Any, tmp_path: Path) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("x = 1\n")
    paths = [tmp_path / "two.py", tmp_path / "one.py"]
    before = rows.digest(paths, tmp_path)
    assert rows.digest(paths[::-1], tmp_path) == before
    (tmp_path / "two.py").write_text("x = 2\n")
    assert rows.digest(paths, tmp_path) != before


def test_the_check_runs_until_it_has_passed(rows: Any, tmp_path: Path) -> None:
    known, ran = tmp_path / "known", tmp_path / "ran"

    def check(found: str, code: int) -> int:
        program = f"open({str(ran)!r}, 'a').write('.'); raise SystemExit({code})"
        result: int = rows.run([sys.executable, "-c", program], found, known)
        return result

    assert check("a", 1) == 1 and not known.exists()
    assert check("a", 0) == 0 and check("a", 1) == 0
    assert check("b", 1) == 1
    assert ran.read_text() == "...", "the third had passed before"
