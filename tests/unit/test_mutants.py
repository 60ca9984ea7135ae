"""``python -m tests.mutants``: what a test would notice is killed, and what none would is named."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import mutants, mutations

pytest.importorskip("tomllib")  # of Python 3.11, whose qualified names of code the tool needs

ROOT = Path(__file__).parents[2]
CODE = '''
"""A module."""


class Till:
    def __init__(self):
        self.sum = 0
        self.hidden = 0

    def pay(self, amount):
        if amount < 0:
            raise ValueError(amount)
        self.sum = self.sum + amount
        self.hidden = self.hidden + 1


def wait(times):
    waits = 0
    while times > 0:
        times -= 1
        waits += 1
    return waits
'''
TESTS = """
import pytest
import till


def test_pays(tmp_path):
    mine = till.Till()
    mine.pay(2)
    mine.pay(3)
    mine.pay(0)
    assert mine.sum == 5
    assert till.wait(3) == 3
    (tmp_path / "sum").write_text("5")


def test_refuses():
    with pytest.raises(ValueError):
        till.Till().pay(-1)
"""


@pytest.fixture(scope="module")
def till(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("till")
    (folder / "till.py").write_text(CODE)
    (folder / "test_till.py").write_text(TESTS)
    return folder


def begin(till: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.mutants", "till.py", "--tests", "test_till.py"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "adapters"), str(till)])
    return subprocess.Popen(
        [*command, "--hang", "0.5", *options],
        cwd=till,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def judged(till: Path) -> str:
    process = begin(till)
    said, errors = process.communicate()
    assert process.returncode == 1, errors
    return said


def test_planted_mutants_are_killed_survive_and_hang(judged: str) -> None:
    """What no test looks at survives; the rest does not; a loop without an end is noticed."""
    survived = [line for line in judged.splitlines() if line.startswith("survived")]
    assert survived, judged
    assert all("till.py:14:" in line or "till.py:8:" in line for line in survived), judged
    assert any("till.py:14:" in line and "left out" in line for line in survived), judged
    hung = [line for line in judged.splitlines() if line.startswith("hung")]
    assert hung and all("till.py:20:" in line for line in hung), judged
    assert "--only till.py:" in judged, "the command that tries one again"
    assert "2 of 2 tests pass" in judged and "(2 learned" in judged


def test_what_tests_reach_is_remembered_and_which_are_left_out_is_told(
    judged: str, till: Path
) -> None:
    """Of what survives some of its tests only nobody knows whether another would notice."""
    found = re.search(r"survived: (till\.py:8:\d+)", judged)
    assert found is not None
    said, errors = begin(till, "--tests-seconds", "0", "--only", found[1]).communicate()
    assert "(0 learned" in said, errors
    assert f"not known, 1 tests left out: {found[1]}" in said
    assert "survived" not in said


def test_ctrl_c_tells_what_is_known_so_far(judged: str, till: Path) -> None:
    process = begin(till, "--jobs", "1")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("survived"):
            break
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate()
    tried = re.search(r"till\.py: \d+ of (\d+) noticed", said)
    assert tried is not None, errors
    everything = re.search(r"till\.py: \d+ of (\d+) noticed", judged)
    assert everything is not None
    assert int(tried[1]) < int(everything[1])


def test_each_kind_of_change_is_drawn_and_nothing_that_people_read() -> None:
    tree = ast.parse(
        '"""Doc."""\n'
        "def f(a: int = 1) -> int | None:\n"
        '    """Doc."""\n'
        "    log.info('so many', a + 1)\n"
        "    for b in a:\n"
        "        if not b and b <= 1 or a:\n"
        "            continue\n"
        "        a.x = g(a, b)\n"
        "    a += min(2.0, b)\n"
        "    raise KeyError(a + 1)\n"
        "    return True\n"
    )
    kinds = {(edit.line, edit.kind) for edit in mutations.edits(tree)}
    assert {kind for _, kind in kinds} == {
        "and/or", "compared", "constant", "left out", "negated", "not", "other extreme",
        "other leap", "other sum", "returns None", "swapped",
    }  # fmt: skip
    assert not [line for line, _ in kinds if line < 5]
    assert (10, "left out") in kinds and (10, "other sum") not in kinds


def test_what_is_listed_as_equivalent_is_one_change_of_the_code_as_it_is() -> None:
    """Where the same stands twice in a file, a row would also hide the other one."""
    known = mutants.equivalents()
    files = {file for file, _ in known}
    there = Counter(
        (each.file, each.change) for file in files for each in mutations.mutants(file, ROOT)
    )
    assert {each: there[each] for each in known if there[each] != 1} == {}
    assert all(len(reason) > 10 for reason in known.values())


def test_the_tests_of_a_part_are_those_that_import_it_also_by_a_public_name(tmp_path: Path) -> None:
    assert "flowctl/pacing/gate.py" in mutants.files_of("pacing")
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    for name, line in {
        "module": "import flowctl.pacing.gate",
        "public": "from flowctl import paced",
        "other": "from flowctl import errors, wire",
    }.items():
        (folder / f"test_{name}.py").write_text(line)
    found = mutants.tests_of(["flowctl/pacing/gate.py", "flowctl/pacing/api.py"], tmp_path)
    assert found == ["tests/unit/test_module.py", "tests/unit/test_public.py"]
