"""``control_rows.py COMMAND``: check the simulator's rows, unless they passed with this very code.

The simulator reads no clock and draws from seeds, so the same code gives the same rows.  A digest
of all that they depend on stands in ``control-rows.sha256`` beside this file, to be committed.
If the digest is out of date, the check runs (three minutes) and then writes the new one.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).resolve().parents[1]
KNOWN: Final = Path(__file__).with_name("control-rows.sha256")
# What no import shows: which rows, and what they are compared with.
BESIDES: Final = ("Makefile", "docs/control-report.md", "flowctl/cli/simulate.py")


def modules(package: str = "flowctl.simulation") -> set[str]:
    """Return all modules that ``package`` may import, wherever it does."""
    graph = grimp.build_graph(package.partition(".")[0])
    own = graph.find_descendants(package) | {package}
    found = own.union(*(graph.find_upstream_modules(module) for module in own))
    parents = {name.rpartition(".")[0] for name in found} - {""}
    return found | parents


def files(names: Iterable[str], root: Path = ROOT) -> list[Path]:
    """Return the files of modules and packages."""
    places = [root.joinpath(*name.split(".")) for name in names]
    return [p / "__init__.py" if p.is_dir() else p.with_suffix(".py") for p in places]


def digest(paths: Iterable[Path], root: Path = ROOT) -> str:
    """Return one digest of names and contents."""
    whole = hashlib.sha256(b"%d.%d" % sys.version_info[:2])
    for path in sorted(paths):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return whole.hexdigest()


def run(command: Sequence[str], found: str, known: Path = KNOWN) -> int:
    """Run ``command`` unless it passed with ``found``; return its exit code."""
    if known.is_file() and known.read_text().strip() == found:
        print("Nothing that the rows of the control law depend on has changed: not run again.")
        return 0
    code = subprocess.call(command, stdout=subprocess.DEVNULL)  # the differences are on stderr
    if code == 0:
        known.write_text(f"{found}\n")
    return code


def main() -> int:
    """Run what the arguments say."""
    depends_on = files(modules()) + [ROOT / name for name in BESIDES]
    return run(sys.argv[1:], digest(depends_on))


if __name__ == "__main__":
    raise SystemExit(main())
