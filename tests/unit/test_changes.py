"""Slow tests, and the rows of the control law, run again when what they are about has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import changes

ROOT = Path(__file__).parents[2]
MARK = "on_change"  # apart, or this file would be taken for one with such tests
MARKED = (
    f"import pytest\n@pytest.mark.{MARK}('http')\n".replace("'", '"')
    + "def test_slow(): print('slow ran')\n"
    + "def test_quick(): print('quick ran')\n"
)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A house with one part, one file of tests and this suite's conftest."""
    for name in ("tests/conftest.py", "tests/changes.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"))
    (tmp_path / "tests/__init__.py").touch()
    (tmp_path / "tests/test_it.py").write_text(MARKED)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\npythonpath = .\ntestpaths = tests\nmarkers =\n    on_change:\n    req:\n"
    )
    (tmp_path / "constraints.txt").touch()
    (tmp_path / "adapters/flowctl_http").mkdir(parents=True)
    (tmp_path / "flowctl/delivery").mkdir(parents=True)
    (tmp_path / "adapters/flowctl_http/sink.py").write_text("x = 1\n")
    (tmp_path / ".ci").mkdir()
    return tmp_path


def ran(house: Path, *arguments: str) -> set[str]:
    """Run the tests there, and return which ran."""
    command = [sys.executable, "-m", "pytest", "-q", "-rP", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *arguments], cwd=house, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # each takes time to load
    )  # fmt: skip
    return {line.split()[0] for line in done.stdout.splitlines() if line.endswith(" ran")}


def test_what_passed_is_left_out_until_its_part_changes(house: Path) -> None:
    assert ran(house) == {"quick", "slow"}
    assert ran(house) == {"quick"}
    assert ran(house, "-p", "xdist", "-n", "1") == {"quick"}, "workers know it too"
    assert ran(house, "tests/test_it.py") == {"quick", "slow"}, "it was asked for"
    (house / "adapters/flowctl_http/sink.py").write_text("x = 2\n")
    assert ran(house) == {"quick", "slow"}


def test_what_failed_or_was_skipped_did_not_pass(house: Path) -> None:
    test = house / "tests/test_it.py"
    test.write_text(MARKED.replace("print('slow ran')", "pytest.skip('no such server')"))
    ran(house)
    assert changes.known(house / ".ci/passed.tsv") == {}
    test.write_text(MARKED.replace("print('quick ran')", "assert False"))
    (house / "tests/test_other.py").write_text(MARKED)
    ran(house, "-x")
    assert changes.known(house / ".ci/passed.tsv") == {}, "who knows what else would have failed"
    ran(house)
    assert set(changes.known(house / ".ci/passed.tsv")) == {"tests/test_other.py"}


def test_each_part_that_is_named_is_there() -> None:
    for places in changes.PARTS.values():
        assert all((ROOT / place).exists() for place in places), places
    for name, parts in changes.marked():
        assert parts <= set(changes.PARTS), name


def test_pure_tests_depend_on_all_that_they_import_wherever_they_do() -> None:
    helpers, modules = changes.imports_of("tests/simulation/test_simulation_runs.py")
    assert helpers == {"tests/simulation/simulation_runs.py"}
    found = {path.relative_to(ROOT).as_posix() for path in changes._product(modules, ROOT)}
    assert {"flowctl/__init__.py", "adapters/flowctl_lab/simulation/catalogue.py"} <= found
    assert "flowctl/core/end_of_input/shares.py" in found, "through others"
    assert "flowctl/core/window/aiad.py" in found, "imported in a function only"
    assert not {"flowctl/runtime/sender.py", "flowctl/cli/main.py"} & found


def test_another_byte_is_another_digest(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("one.py", "a/two.py"):
        (tmp_path / name).write_text("x = 1\n")
    before = changes.digest(["one.py", "a"], tmp_path)
    assert changes.digest(["a", "one.py", "a"], tmp_path) == before
    (tmp_path / "a/two.py").write_text("x = 2\n")
    assert changes.digest(["one.py", "a"], tmp_path) != before


def test_the_rows_of_the_control_law_run_until_they_have_passed(tmp_path: Path) -> None:
    known, program = tmp_path / "known", tmp_path / "ran"

    def check(found: str, code: int) -> int:
        text = f"open({str(program)!r}, 'a').write('.'); raise SystemExit({code})"
        return changes.run([sys.executable, "-c", text], "rows", found, known)

    assert check("a", 1) == 1 and not known.exists()
    assert check("a", 0) == 0 and check("a", 1) == 0
    assert check("b", 1) == 1
    assert program.read_text() == "...", "the third had passed before"
