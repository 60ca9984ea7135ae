"""What `make dist` holds against a wheel and an sdist: each way in which they could be wrong."""

from __future__ import annotations

import importlib.util
import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("check_dist", ROOT / ".ci" / "check_dist.py")
assert _spec is not None and _spec.loader is not None
check_dist = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_dist)

METADATA = b"Metadata-Version: 2.4\nName: flowctl-spark\nVersion: 1.2.3\nRequires-Dist: click\n\n"
SOURCES = {
    "LICENSE": b"a licence",
    "Makefile": b"dist:\n",
    "adapters/flowctl_x/__init__.py": b"",
    "adapters/flowctl_x/lua/save.lua": b"return 1",
    "flowctl/__init__.py": b'__version__ = "1.2.3"\n',
    "flowctl/py.typed": b"",
    "tests/unit/test_x.py": b"",
}
INFO = "flowctl_spark-1.2.3.dist-info/"


def wheel_files() -> dict[str, bytes]:
    packed = {
        name.removeprefix("adapters/"): data
        for name, data in SOURCES.items()
        if name.startswith(("adapters/", "flowctl/"))
    }
    told = dict.fromkeys(("WHEEL", "RECORD", "entry_points.txt"), b"")
    info = {**told, "METADATA": METADATA, "licenses/LICENSE": SOURCES["LICENSE"]}
    return packed | {INFO + name: data for name, data in info.items()}


def sdist_files() -> dict[str, bytes]:
    return {**SOURCES, "PKG-INFO": METADATA}


def make(folder: Path, wheel: dict[str, bytes], sdist: dict[str, bytes]) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(folder / "flowctl_spark-1.2.3-py3-none-any.whl", "w") as file:
        for name, data in wheel.items():
            file.writestr(zipfile.ZipInfo(name), data)
    # Without gzip, whose header would hold the time.
    with tarfile.open(folder / "flowctl_spark-1.2.3.tar.gz", "w") as tar:
        for name, data in sdist.items():
            member = tarfile.TarInfo(f"flowctl_spark-1.2.3/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return folder


def found(tmp_path: Path, wheel: dict[str, bytes], sdist: dict[str, bytes]) -> list[str]:
    dist = make(tmp_path / "dist", wheel, sdist)
    again = shutil.copytree(dist, tmp_path / "again")
    return list(check_dist.problems(dist, again, set(SOURCES), checkout=Path("/home/me/flowctl")))


def test_what_is_right_passes(tmp_path: Path) -> None:
    assert found(tmp_path, wheel_files(), sdist_files()) == []


@pytest.mark.parametrize(
    "name",
    [
        "tests/test_x.py",
        "flowctl/__pycache__/a.cpython-313.pyc",
        ".ci/run",
        "flowctl_y/__init__.py",
        INFO + "direct_url.json",
    ],
)
def test_a_wheel_has_nothing_else(tmp_path: Path, name: str) -> None:
    [told] = found(tmp_path, {**wheel_files(), name: b""}, sdist_files())
    assert name in told and "should not be in the wheel" in told


@pytest.mark.parametrize(
    "name", ["flowctl/py.typed", "flowctl_x/lua/save.lua", INFO + "licenses/LICENSE"]
)
def test_a_wheel_lacks_nothing(tmp_path: Path, name: str) -> None:
    wheel = wheel_files()
    del wheel[name]
    [told] = found(tmp_path, wheel, sdist_files())
    assert name in told and "is missing from the wheel" in told


def test_an_sdist_is_what_git_has(tmp_path: Path) -> None:
    sdist = sdist_files()
    del sdist["Makefile"]
    told = found(tmp_path, wheel_files(), {**sdist, "notes.txt": b""})
    assert ["Makefile" in told[0], "notes.txt" in told[1]] == [True, True] and len(told) == 2


def test_files_of_a_wheel_are_those_of_the_sdist(tmp_path: Path) -> None:
    [told] = found(tmp_path, {**wheel_files(), "flowctl/py.typed": b"partial"}, sdist_files())
    assert "flowctl/py.typed differs" in told


def test_nothing_names_the_directory_that_it_was_built_in(tmp_path: Path) -> None:
    sdist = {**sdist_files(), "flowctl/py.typed": b"/home/me/flowctl/x"}
    [told] = found(tmp_path, {**wheel_files(), "flowctl/py.typed": b"/home/me/flowctl/x"}, sdist)
    assert "flowctl/py.typed" in told and "/home/me/flowctl" in told


@pytest.mark.parametrize(
    ("line", "by", "said"),
    [
        (b"Version: 1.2.3", b"Version: 1.2.4", "1.2.4"),
        (b"Name: flowctl-spark", b"Name: flowctl", "flowctl-spark"),
        (b"Requires-Dist: click", b"Requires-Dist: click @ file:///tmp/click", "file:///tmp/click"),
    ],
)
def test_the_metadata_fit_the_package(tmp_path: Path, line: bytes, by: bytes, said: str) -> None:
    told = METADATA.replace(line, by)
    wheel, sdist = {**wheel_files(), INFO + "METADATA": told}, {**sdist_files(), "PKG-INFO": told}
    [problem] = found(tmp_path, wheel, sdist)
    assert said in problem


def test_wheel_and_sdist_say_the_same(tmp_path: Path) -> None:
    [told] = found(tmp_path, wheel_files(), {**sdist_files(), "PKG-INFO": METADATA + b"more"})
    assert "PKG-INFO" in told


def _other_bytes(folder: Path) -> None:
    [path] = folder.glob("*.whl")
    path.write_bytes(path.read_bytes() + b"\0")


def _none(folder: Path) -> None:
    next(folder.glob("*.tar.gz")).unlink()


@pytest.mark.parametrize("spoil", [_other_bytes, _none])
def test_a_second_build_gives_the_same_bytes(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    dist = make(tmp_path / "dist", wheel_files(), sdist_files())
    again = shutil.copytree(dist, tmp_path / "again")
    spoil(again)
    [told] = check_dist.problems(dist, again, set(SOURCES), checkout=Path("/home/me/flowctl"))
    assert "another build" in told


def test_there_is_one_of_each(tmp_path: Path) -> None:
    dist = make(tmp_path / "dist", wheel_files(), sdist_files())
    (dist / "flowctl_spark-1.2.2-py3-none-any.whl").write_bytes(b"")
    [told] = check_dist.problems(dist, dist, set(SOURCES), checkout=Path("/home/me/flowctl"))
    assert "flowctl_spark-1.2.2-py3-none-any.whl" in told
