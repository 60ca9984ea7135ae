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
    ".gitignore": b"",
    "LICENSE": b"a licence",
    "Makefile": b"dist:\n",
    "adapters/flowctl_x/__init__.py": b"",
    "adapters/flowctl_x/lua/save.lua": b"return 1",
    "adapters/flowctl_lab/LICENSE": b"a licence",
    "adapters/flowctl_lab/__init__.py": b"",
    "adapters/flowctl_lab/demo/a.py": b"",
    "adapters/flowctl_lab/py.typed": b"",
    "adapters/flowctl_lab/pyproject.toml": b"",
    "adapters/flowctl_storm/LICENSE": b"a licence",
    "adapters/flowctl_storm/__init__.py": b"",
    "adapters/flowctl_storm/pyproject.toml": b"",
    "flowctl/__init__.py": b'__version__ = "1.2.3"\n',
    "flowctl/py.typed": b"",
    "tests/unit/test_x.py": b"",
}
INFO = "flowctl_spark-1.2.3.dist-info/"
LAB_INFO = "flowctl_spark_lab-1.2.3.dist-info/"
Files = dict[str, bytes]


def wheel_files() -> Files:
    packed = {
        name.removeprefix("adapters/"): data
        for name, data in SOURCES.items()
        if name.startswith(("adapters/flowctl_x/", "flowctl/"))
    }
    return packed | info_files(INFO, METADATA, "entry_points.txt")


def info_files(info: str, metadata: bytes, *more: str) -> Files:
    told = dict.fromkeys(("WHEEL", "RECORD", *more), b"")
    told |= {"METADATA": metadata, "licenses/LICENSE": SOURCES["LICENSE"]}
    return {info + name: data for name, data in told.items()}


def sdist_files() -> Files:
    return {**SOURCES, "PKG-INFO": METADATA}


def metadata_of(part: str) -> bytes:
    own = METADATA.replace(b"flowctl-spark", b"flowctl-spark-" + part.encode())
    return own.replace(b"click", b"flowctl-spark==1.2.3")


def part_files(part: str) -> tuple[Files, Files]:
    home, metadata = f"adapters/flowctl_{part}/", metadata_of(part)
    own = {n.removeprefix(home): data for n, data in SOURCES.items() if n.startswith(home)}
    wheel = {f"flowctl_{part}/{n}": own[n] for n in own if n.endswith((".py", "py.typed"))}
    wheel |= info_files(f"flowctl_spark_{part}-1.2.3.dist-info/", metadata)
    return wheel, {**own, ".gitignore": b"", "PKG-INFO": metadata}


def make(folder: Path, name: str, wheel: Files, sdist: Files) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.2.3-py3-none-any.whl", "w") as file:
        for path, data in wheel.items():
            file.writestr(zipfile.ZipInfo(path), data)
    # Without gzip, whose header would hold the time.
    with tarfile.open(folder / f"{name}-1.2.3.tar.gz", "w") as tar:
        for path, data in sdist.items():
            member = tarfile.TarInfo(f"{name}-1.2.3/{path}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def make_all(folder: Path, wheel: Files, sdist: Files, lab: tuple[Files, Files]) -> Path:
    make(folder, "flowctl_spark", wheel, sdist)
    make(folder, "flowctl_spark_lab", *lab)
    make(folder, "flowctl_spark_storm", *part_files("storm"))
    return folder


def problems(dist: Path, again: Path) -> list[str]:
    home = Path("/home/me/flowctl")
    return list(check_dist.problems(dist, again, set(SOURCES), home, "1.2.3"))


def found(
    tmp_path: Path, wheel: Files, sdist: Files, lab: tuple[Files, Files] | None = None
) -> list[str]:
    dist = make_all(tmp_path / "dist", wheel, sdist, lab or part_files("lab"))
    return problems(dist, shutil.copytree(dist, tmp_path / "again"))


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
    [path] = folder.glob("flowctl_spark_lab-*.whl")
    path.write_bytes(path.read_bytes() + b"\0")


def _none(folder: Path) -> None:
    next(folder.glob("*.tar.gz")).unlink()


@pytest.mark.parametrize("spoil", [_other_bytes, _none])
def test_a_second_build_gives_the_same_bytes(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    dist = make_all(tmp_path / "dist", wheel_files(), sdist_files(), part_files("lab"))
    again = shutil.copytree(dist, tmp_path / "again")
    spoil(again)
    [told] = problems(dist, again)
    assert "another build" in told


def test_there_is_one_of_each(tmp_path: Path) -> None:
    dist = make_all(tmp_path / "dist", wheel_files(), sdist_files(), part_files("lab"))
    for name in ("flowctl_spark-1.2.2-py3-none-any.whl", "another-1.0.tar.gz"):
        (dist / name).write_bytes(b"")
        [told] = problems(dist, dist)
        assert name in told
        (dist / name).unlink()


def test_what_is_in_a_part_is_in_no_other_wheel(tmp_path: Path) -> None:
    [told] = found(tmp_path, {**wheel_files(), "flowctl_lab/demo/a.py": b""}, sdist_files())
    assert "flowctl_lab/demo/a.py should not be in the wheel" in told


def test_a_part_has_all_that_is_its_own(tmp_path: Path) -> None:
    wheel, sdist = part_files("lab")
    del wheel["flowctl_lab/demo/a.py"]
    [told] = found(tmp_path, wheel_files(), sdist_files(), (wheel, sdist))
    assert "flowctl_lab/demo/a.py is missing from the wheel" in told


@pytest.mark.parametrize("asked", [b"flowctl-spark>=1.2", b"flowctl-spark==1.2.2", b"click"])
def test_a_part_asks_for_this_very_version(tmp_path: Path, asked: bytes) -> None:
    wheel, sdist = part_files("lab")
    told = metadata_of("lab").replace(b"flowctl-spark==1.2.3", asked)
    lab = ({**wheel, LAB_INFO + "METADATA": told}, {**sdist, "PKG-INFO": told})
    [problem] = found(tmp_path, wheel_files(), sdist_files(), lab)
    assert "flowctl-spark-lab" in problem and "ask" in problem


def test_the_extra_asks_for_this_very_version(tmp_path: Path) -> None:
    more = b'Requires-Dist: flowctl-spark-lab==1.2.2; extra == "lab"\nVersion'
    told = METADATA.replace(b"Version: 1.2.3", more + b": 1.2.3")
    wheel = {**wheel_files(), INFO + "METADATA": told}
    [problem] = found(tmp_path, wheel, {**sdist_files(), "PKG-INFO": told})
    assert "flowctl-spark-lab==1.2.2" in problem
