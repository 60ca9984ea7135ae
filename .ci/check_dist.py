"""Check what ``make dist`` made: ``check_dist.py DIST AGAIN``.

DIST has, for each distribution, an sdist and the wheel that was built from it; AGAIN has all of
them as another build made them, straight from the checkout.
"""

from __future__ import annotations

import email
import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NAME = "flowctl-spark"
_INFO_FILES = {"METADATA", "RECORD", "WHEEL", "licenses/LICENSE"}
# A requirement of one of ours by another, which has to be of this very version.
_OURS = re.compile(r"(flowctl-spark(?:-\w+)?)(?![\w\[-])\s*(?:==\s*([\w.]+))?")
_Files = dict[str, bytes]


class Distribution(NamedTuple):
    """What has a wheel and an sdist of its own; ``home``: its folder, which is its package too."""

    name: str
    home: str = ""

    @property
    def stem(self) -> str:
        """How the names of its files begin."""
        return self.name.replace("-", "_")


PARTS = (
    Distribution("flowctl-spark-lab", "adapters/flowctl_lab/"),
    Distribution("flowctl-spark-storm", "adapters/flowctl_storm/"),
)
ALL = (Distribution(_NAME), *PARTS)


def main(dist: Path, again: Path) -> int:
    checkout = Path(__file__).resolve().parents[1]
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=checkout, capture_output=True, text=True, check=True
    )
    tracked = {name for name in listed.stdout.split("\0") if name and (checkout / name).exists()}
    version = _version_in((checkout / "flowctl/__init__.py").read_text(encoding="utf-8"))
    wrong = list(problems(dist, again, tracked, checkout, version))
    for problem in wrong:
        print(problem, file=sys.stderr)
    if not wrong:
        _tell(dist)
    return bool(wrong)


def problems(
    dist: Path, again: Path, tracked: set[str], checkout: Path, version: str
) -> Iterator[str]:
    """Yield what is wrong with the wheels and sdists in ``dist``, a line each.

    ``tracked`` are the files that git has; ``checkout`` is where they were built, and ``version``
    what all of them should have.
    """
    made = sorted(path.name for path in dist.iterdir())
    for each in ALL:
        own = [name for name in made if name.startswith(f"{each.stem}-")]
        made = [name for name in made if name not in own]
        wheels, sdists = list(dist.glob(f"{each.stem}-*.whl")), list(dist.glob(f"{each.stem}-*.gz"))
        if len(own) != 2 or len(wheels) != 1 or len(sdists) != 1:
            yield f"{dist}: not one wheel and one sdist of {each.name}, but {', '.join(own) or 0}"
            continue
        wheel, sdist = _wheel(wheels[0]), _sdist(sdists[0])
        yield from _of_sdist(each, sdist, tracked)
        yield from _of_wheel(each, wheel, sdist)
        yield from _of_metadata(each, wheel, sdist, version)
        for name, data in wheel.items():
            if str(checkout).encode() in data:
                yield f"{name} names the directory that it was built in: {checkout}"
        for name in own:
            if not _is_same(dist / name, again / name):
                yield f"{name}: another build did not give the same bytes"
    yield from (f"{dist}: {name} should not be there" for name in made)


def _is_same(path: Path, other: Path) -> bool:
    return other.exists() and path.read_bytes() == other.read_bytes()


def _version_in(code: str) -> str:
    found = re.search(r'^__version__ = "(.+)"$', code, re.MULTILINE)
    return found[1] if found else ""


def _of_sdist(each: Distribution, sdist: _Files, tracked: set[str]) -> Iterator[str]:
    own = {name.removeprefix(each.home) for name in tracked if name.startswith(each.home)}
    wanted = {*own, ".gitignore", "PKG-INFO"}  # what the build looks at, wherever it is
    yield from (f"{name} is in git, and missing from the sdist" for name in wanted - sdist.keys())
    for name in sorted(sdist.keys() - wanted):
        yield f"{name} is in the sdist, and not in git: commit it, or have git ignore it"


def _of_wheel(each: Distribution, wheel: _Files, sdist: _Files) -> Iterator[str]:
    sources = {
        _in_wheel(each, name): data for name, data in sdist.items() if _is_packed(each, name)
    }
    info = _INFO_FILES if each.home else {*_INFO_FILES, "entry_points.txt"}
    wanted = sources.keys() | {_info(wheel) + name for name in info}
    yield from (f"{name} is missing from the wheel" for name in sorted(wanted - wheel.keys()))
    yield from (f"{name} should not be in the wheel" for name in sorted(wheel.keys() - wanted))
    for name in sorted(sources.keys() & wheel.keys()):
        if sources[name] != wheel[name]:
            yield f"{name} differs from the file in the sdist"


def _is_packed(each: Distribution, name: str) -> bool:
    if each.home:
        return name.endswith((".py", "py.typed"))
    of_a_part = name.startswith(tuple(part.home for part in PARTS))
    return name.startswith(("flowctl/", "adapters/")) and not of_a_part


def _in_wheel(each: Distribution, name: str) -> str:
    return f"{each.home}{name}".removeprefix("adapters/")


def _info(wheel: _Files) -> str:
    found = {name.split("/")[0] + "/" for name in wheel if ".dist-info/" in name}
    return found.pop() if len(found) == 1 else ".dist-info/"


def _of_metadata(each: Distribution, wheel: _Files, sdist: _Files, version: str) -> Iterator[str]:
    raw = wheel.get(_info(wheel) + "METADATA", b"")
    if raw != sdist.get("PKG-INFO"):
        yield f"{each.name}: the sdist's PKG-INFO differs from the wheel's METADATA"
    told = email.message_from_bytes(raw)
    if told["Name"] != each.name:
        yield f"the metadata are of {told['Name']}, not of {each.name}"
    if told["Version"] != version:
        told_of = f"{each.name}: the metadata say version {told['Version']}"
        yield f"{told_of}, flowctl.__version__ another"
    for line in told.get_all("Requires-Dist", []):
        if re.search(r"\s@\s", line):
            yield f"an index refuses requirements with an address: {line}"
        if (ours := _OURS.match(line)) and ours[2] != version:
            yield f"{each.name} asks for {line}, not for the {version} of {ours[1]}"
    if each.home and _NAME not in " ".join(told.get_all("Requires-Dist", [])):
        yield f"{each.name} does not ask for {_NAME}"


def _wheel(path: Path) -> _Files:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def _sdist(path: Path) -> _Files:
    with tarfile.open(path) as tar:
        read = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {name.split("/", 1)[1]: file.read() for name, file in read.items() if file}


def _tell(dist: Path) -> None:
    for path in sorted(dist.iterdir()):
        data = path.read_bytes()
        files = _wheel(path) if path.suffix == ".whl" else _sdist(path)
        print(f"{path}: {len(files)} files, {len(data):,} bytes")
        print(f"  sha256 {hashlib.sha256(data).hexdigest()}")
    print("Checked: files, metadata, licence, and that a second build gives the same bytes.")


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
