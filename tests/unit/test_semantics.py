"""The check of docs/dev/semantics.md finds what is wrong; ``--req`` runs exactly what it names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.semantics import NUMBERS, PAGE, CollectedTest, Row, problems, read_page

ROOT = Path(__file__).parents[2]
RIGHT = "| S{} | something | `core.ledger.PartitionLedger` | `test_x.py`, `test_x.py::test_it` | |"


def shown(*requirements: str) -> CollectedTest:
    return CollectedTest("tests/unit/test_x.py", frozenset({"test_it"}), frozenset(requirements))


def checked(changed: str = "", *, tests: list[CollectedTest] | None = None) -> list[str]:
    """What is wrong with a page whose row of S27 is ``changed``."""
    lines = [RIGHT.format(number) for number in NUMBERS]
    if changed:
        lines[26] = changed
    rows, told = read_page("\n".join(lines))
    if tests is None:
        tests = [shown(*(f"S{number}" for number in NUMBERS))]
    return told + problems(rows, tests)


def test_a_page_that_is_right_is_let_through() -> None:
    assert checked() == []
    assert checked("| S27 | something | | ignored | superseded |") == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("", f"{PAGE}: S27 is missing"),
        (RIGHT.format(26), f"{PAGE}:27: S26 is in line 26 already"),
        (RIGHT.format(126), f"{PAGE}:27: S126 is no requirement"),
        ("| S27 | x | `core.ledger.Ledger` | `test_x.py` | |", "S27: there is no core.ledger"),
        ("| S27 | x | `core.legder` | `test_x.py` | |", "S27: there is no core.legder"),
        ("| S27 | x | `docs/no.md` | `test_x.py` | |", "S27: there is no docs/no.md"),
        ("| S27 | x | `core.ledger` | `test_y.py` | |", "S27: there is no test test_y.py"),
        ("| S27 | x | `core.ledger` | `test_x.py::test_no` | |", "there is no test test_x.py::"),
        ("| S27 | x | the ledger | `test_x.py` | |", "S27: nothing is named that does it"),
        ("| S27 | x | `core.ledger` | none | |", "S27: no test is named"),
        ("| S27 | | `core.ledger` | `test_x.py` | |", f"{PAGE}:27: S27 says not what it asks"),
        ("| S27 | x | | ignored | |", f"{PAGE}:27: S27 says not what it asks, or why not"),
        ("| S27 | x | `core.ledger` | `test_x.py` |", f"{PAGE}:27: a row has 5 cells"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(changed: str, told: str) -> None:
    problems = checked(changed or "no row at all")
    assert any(told in problem for problem in problems), problems


def test_a_requirement_that_no_test_is_marked_with() -> None:
    others = [shown(*(f"S{number}" for number in NUMBERS if number != 27))]
    assert checked(tests=others) == [f"{PAGE}:27: S27: no test is marked with it"]


def test_a_test_that_is_named_and_marked_with_another_requirement() -> None:
    other = CollectedTest("tests/unit/test_y.py", frozenset({"test_y"}), frozenset({"S27"}))
    every = [shown(*(f"S{number}" for number in NUMBERS if number != 27)), other]
    assert checked(tests=every) == [
        f"{PAGE}:27: S27: test_x.py is not marked with it",
        f"{PAGE}:27: S27: test_x.py::test_it is not marked with it",
    ]


def test_a_marker_that_names_no_requirement() -> None:
    numbers = [f"S{number}" for number in NUMBERS]
    assert checked(tests=[shown(*numbers, "S126")]) == [
        "tests/unit/test_x.py::test_it: S126 is no requirement"
    ]


def test_names_of_other_packages_are_found_too() -> None:
    row = Row(1, "S1", ["flowctl_files.TextLines", "runtime.sender.SpoutLoop.step"], [], True)
    assert [problem for problem in problems([row], []) if " S1:" in problem] == []


MARKED = """
import pytest

@pytest.mark.req("S1")
def test_one(): ...

@pytest.mark.req("S11")
def test_eleven(): ...

@pytest.mark.req("S110", "S111")
def test_far_beyond(): ...

@pytest.mark.req("S2")
class TestMarkedAsAWhole:
    def test_two(self): ...

    @pytest.mark.req("S11", "S1")
    @pytest.mark.parametrize("n", [1, 2])
    def test_two_and_eleven(self, n): ...

def test_unmarked(): ...
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--req", "S11"], {"test_eleven", "test_two_and_eleven[1]", "test_two_and_eleven[2]"}),
        (["--req", "S1"], {"test_one", "test_two_and_eleven[1]", "test_two_and_eleven[2]"}),
        (["--req", "S110"], {"test_far_beyond"}),
        (["--req", "S110", "--req", "S1", "-k", "not two"], {"test_far_beyond", "test_one"}),
        (["--req", "S3"], set()),
    ],
)
def test_req_runs_exactly_the_tests_of_that_requirement(
    tmp_path: Path, options: list[str], expected: set[str]
) -> None:
    path = tmp_path / "test_marked.py"
    path.write_text(MARKED)
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider",
         *settings, "-v", str(path), *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    ran = {
        line.split(" ")[0].rpartition("::")[2]
        for line in done.stdout.splitlines()
        if " PASSED" in line
    }
    assert ran == expected, done.stdout + done.stderr
    assert done.returncode == (0 if expected else pytest.ExitCode.NO_TESTS_COLLECTED)
