"""Check what ``make dist`` made: ``check_dist.py DIST AGAIN``.

DIST has an sdist, and the wheel that was built from it; AGAIN has both as another build made them,
straight from the checkout.
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

_NAME = "flowctl-spark"
_INFO_FILES = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
_Files = dict[str, bytes]


def main(dist: Path, again: Path) -> int:
    checkout = Path(__file__).resolve().parents[1]
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=checkout, capture_output=True, text=True, check=True
    )
    tracked = {name for name in listed.stdout.split("\0") if name and (checkout / name).exists()}
    wrong = list(problems(dist, again, tracked, checkout))
    for problem in wrong:
        print(problem, file=sys.stderr)
    if not wrong:
        _tell(dist)
    return bool(wrong)


def problems(dist: Path, again: Path, tracked: set[str], checkout: Path) -> Iterator[str]:
    """Yield what is wrong with the one wheel and the one sdist in ``dist``, a line each.

    ``tracked`` are the files that git has; ``checkout`` is where they were built.
    """
    made = sorted(path.name for path in dist.iterdir())
    wheels, sdists = list(dist.glob("*.whl")), list(dist.glob("*.tar.gz"))
    if len(made) != 2 or len(wheels) != 1 or len(sdists) != 1:
        yield f"{dist}: not one wheel and one sdist, but {', '.join(made)}"
        return
    wheel, sdist = _wheel(wheels[0]), _sdist(sdists[0])
    yield from _of_sdist(sdist, tracked)
    yield from _of_wheel(wheel, sdist)
    yield from _of_metadata(wheel, sdist)
    for name, data in wheel.items():
        if str(checkout).encode() in data:
            yield f"{name} names the directory that it was built in: {checkout}"
    for name in made:
        if not (again / name).exists() or (again / name).read_bytes() != (dist / name).read_bytes():
            yield f"{name}: another build did not give the same bytes"


def _of_sdist(sdist: _Files, tracked: set[str]) -> Iterator[str]:
    wanted = {*tracked, "PKG-INFO"}
    yield from (f"{name} is in git, and missing from the sdist" for name in wanted - sdist.keys())
    for name in sorted(sdist.keys() - wanted):
        yield f"{name} is in the sdist, and not in git: commit it, or have git ignore it"


def _of_wheel(wheel: _Files, sdist: _Files) -> Iterator[str]:
    sources = {_in_wheel(name): data for name, data in sdist.items() if _is_packed(name)}
    wanted = sources.keys() | {_info(wheel) + name for name in _INFO_FILES}
    yield from (f"{name} is missing from the wheel" for name in sorted(wanted - wheel.keys()))
    yield from (f"{name} should not be in the wheel" for name in sorted(wheel.keys() - wanted))
    for name in sorted(sources.keys() & wheel.keys()):
        if sources[name] != wheel[name]:
            yield f"{name} differs from the file in the sdist"


def _is_packed(name: str) -> bool:
    return name.startswith(("flowctl/", "adapters/"))


def _in_wheel(name: str) -> str:
    return name.removeprefix("adapters/")


def _info(wheel: _Files) -> str:
    found = {name.split("/")[0] + "/" for name in wheel if ".dist-info/" in name}
    return found.pop() if len(found) == 1 else ".dist-info/"


def _of_metadata(wheel: _Files, sdist: _Files) -> Iterator[str]:
    raw = wheel.get(_info(wheel) + "METADATA", b"")
    if raw != sdist.get("PKG-INFO"):
        yield "the sdist's PKG-INFO differs from the wheel's METADATA"
    told = email.message_from_bytes(raw)
    if told["Name"] != _NAME:
        yield f"the metadata are of {told['Name']}, not of {_NAME}"
    code = sdist.get("flowctl/__init__.py", b"").decode()
    if f'__version__ = "{told["Version"]}"' not in code:
        yield f"the metadata say version {told['Version']}, flowctl.__version__ another"
    for line in told.get_all("Requires-Dist", []):
        if re.search(r"\s@\s", line):
            yield f"an index refuses requirements with an address: {line}"


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
