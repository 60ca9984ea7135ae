"""Check that the pins hold for everyone: exact, complete, and free of any registry's address.

Lock files that carry addresses (uv.lock, pylock.toml) must not be committed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import tomllib

_PIN = re.compile(r"([a-z0-9-]+)==[^\s;]+( ; .+)?")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RENEW = "run: make pins"


def main() -> int:
    root = Path(__file__).parents[1]
    problems = [*_bad_pins(root), *_missing_pins(root), *_lock_files(root)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return bool(problems)


def _pin_lines(root: Path) -> list[str]:
    return (root / "constraints.txt").read_text(encoding="utf-8").splitlines()


def _bad_pins(root: Path) -> Iterator[str]:
    for number, line in enumerate(_pin_lines(root), start=1):
        # Also refuses addresses, options such as --index-url, and "name @ place".
        if not _PIN.fullmatch(line) or "://" in line:
            yield f"constraints.txt:{number}: not a plain pin (name==version); {_RENEW}"


def _missing_pins(root: Path) -> Iterator[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    ours = {_name(project["name"]), *map(_name, _parts(root))}
    wanted = {_name(line) for group in (project["dependencies"], *extras) for line in group}
    pinned = {_name(line) for line in _pin_lines(root)}
    for name in sorted(wanted - pinned - ours):
        yield f"constraints.txt: {name} has no pin; {_RENEW}"


def _parts(root: Path) -> Iterator[str]:
    """The names of what has a wheel of its own in this repository."""
    for path in sorted(root.glob("adapters/*/pyproject.toml")):
        yield tomllib.loads(path.read_text(encoding="utf-8"))["project"]["name"]


def _name(requirement: str) -> str:
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def _lock_files(root: Path) -> Iterator[str]:
    if not (root / ".git").exists():
        return  # an unpacked source archive
    listed = ["git", "ls-files", "*uv.lock", "*pylock*.toml"]
    done = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True)
    for path in done.stdout.split():
        yield f"{path}: carries a registry's addresses; git rm --cached {path}"


if __name__ == "__main__":
    sys.exit(main())
