"""Slow tests run where what they are about has changed; their digest says so.

A test that is marked ``on_change("spark", …)`` names the parts of the product that it is about;
``on_change()``, for tests of pure code, means all that its file imports.  ``.ci/passed.tsv`` holds,
for each file with such tests, a digest of those parts and of the file with its helpers, as they
were when its tests passed in a run of the whole suite.  ``make check`` leaves the marked tests of a
file out where its digest is still the same, and writes the digests anew; commit them.
``make test-long``, a path, ``-k``, ``-m`` and ``--req`` leave none out.

The rows of the control law are held the same way: ``python -m tests.changes COMMAND`` runs a
command unless it passed with this very simulator.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PASSED: Final = ROOT / ".ci" / "passed.tsv"
ROWS: Final = "docs/control-report.md"

# What the name of a part stands for: the code that meets what such tests try for real.
PARTS: Final[dict[str, tuple[str, ...]]] = {
    "apply": ("adapters/flowctl_apply", "adapters/pyspark_flowctl", "flowctl/runtime"),
    "aws": ("adapters/flowctl_aws", "flowctl/delivery"),
    "cli": ("flowctl/cli", "flowctl/runtime", "adapters/flowctl_lab/demo"),
    "core": ("flowctl/core", "flowctl/errors.py", "flowctl/config.py"),
    "delivery": ("flowctl/delivery", "adapters/pyspark_flowctl"),
    "files": ("adapters/flowctl_files", "flowctl/runtime"),
    "http": ("adapters/flowctl_http", "flowctl/delivery", "flowctl/bolts"),
    "kafka": ("adapters/flowctl_kafka", "flowctl/runtime", "adapters/flowctl_storm"),
    "pages": ("docs/README.md", "docs/howto", "deploy/smoke.py"),
    "readme": (
        "README.md",
        "pyproject.toml",
        "flowctl/cli",
        "adapters/flowctl_lab/demo",
        "adapters/flowctl_redis",
    ),
    "redis": ("adapters/flowctl_redis", "flowctl/runtime", "flowctl/pacing"),
    "spark": ("adapters/pyspark_flowctl", "flowctl/bolts", "flowctl/runtime", "flowctl/wire"),
    "sql": ("adapters/flowctl_sql", "flowctl/bolts"),
    "topology": (
        "adapters/flowctl_storm",
        "flowctl/core",
        "flowctl/errors.py",
        "flowctl/config.py",
    ),
    "wire": ("flowctl/wire", "flowctl/bolts", "flowctl/runtime"),
}
_SHARED: Final = ("constraints.txt", "tests/conftest.py")
_MARKED: Final = re.compile(r"\bmark\.on_change\(\s*((?:\"\w+\"(?:,\s*)?)*)\)")


def marked(root: Path = ROOT) -> Iterator[tuple[str, frozenset[str]]]:
    """Each file with tests that run on a change, and the parts that it names."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        found = _MARKED.findall(path.read_text(encoding="utf-8"))
        if found:
            yield path.relative_to(root).as_posix(), frozenset(re.findall(r"\w+", " ".join(found)))


def digests(root: Path = ROOT) -> dict[str, str]:
    """The digest of each such file as it is now; an unknown part is a KeyError."""
    found = {}
    for name, parts in marked(root):
        helpers, modules = imports_of(name, root)
        places = [place for part in sorted(parts) for place in PARTS[part]]
        if not parts:
            places = [path.relative_to(root).as_posix() for path in _product(modules, root)]
        found[name] = digest([name, *helpers, *places, *_SHARED], root)
    return found


def imports_of(name: str, root: Path = ROOT) -> tuple[set[str], set[str]]:
    """The files of tests that a file of tests imports, and the names of all else that they import.

    Wherever they do; also through each other.
    """
    helpers: set[str] = set()
    modules: set[str] = set()
    waiting = [name]
    while waiting:
        file = waiting.pop()
        for module in _imported((root / file).read_text(encoding="utf-8")):
            helper = _helper(module, file, root)
            if helper is None:
                modules.add(module)
            elif helper not in helpers:
                helpers.add(helper)
                waiting.append(helper)
    return helpers, modules


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _helper(module: str, importer: str, root: Path) -> str | None:
    """The file of a module of tests; those beside the importer need no package's name."""
    own = (Path(importer).parent / f"{module}.py").as_posix()
    for name in (f"{module.replace('.', '/')}.py", own):
        if name.startswith("tests/") and (root / name).is_file():
            return name
    return None


def imported_by(module: str, root: Path) -> set[str]:
    """The modules of the product that import this one themselves."""
    graph = _graph(root)
    return graph.find_modules_that_directly_import(module) if module in graph.modules else set()


def _product(modules: Iterable[str], root: Path) -> list[Path]:
    """The files of all modules of the product that may be imported through these."""
    graph = _graph(root)
    own = {module for module in modules if module in graph.modules}
    found = own.union(*(graph.find_upstream_modules(module) for module in own))
    found |= {name.rpartition(".")[0] for name in found} - {""}
    places = [root.joinpath(base, *m.split(".")) for m in found for base in ("", "adapters")]
    files = [p / "__init__.py" if p.is_dir() else p.with_suffix(".py") for p in places]
    return [file for file in files if file.is_file()]


@functools.cache
def _graph(root: Path) -> Any:
    import grimp  # a development tool

    adapters = [path.parent.name for path in sorted((root / "adapters").glob("*/__init__.py"))]
    return grimp.build_graph("flowctl", *adapters)


def digest(places: Iterable[str], root: Path = ROOT) -> str:
    """One digest of the names and contents of files, and of all files below folders."""
    whole = hashlib.sha256(b"%d.%d" % sys.version_info[:2])
    for name in sorted({name for place in places for name in _files(root, place)}):
        content = hashlib.sha256((root / name).read_bytes()).hexdigest()
        whole.update(f"{name} {content}\n".encode())
    return whole.hexdigest()


@functools.cache
def _files(root: Path, place: str) -> list[str]:
    path = root / place
    found = path.rglob("*") if path.is_dir() else [path]
    kept = [each for each in found if each.is_file() and "__pycache__" not in each.parts]
    return [each.relative_to(root).as_posix() for each in kept]


def known(path: Path = PASSED) -> dict[str, str]:
    """What passed, as it was written."""
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t", 1) for line in lines if "\t" in line)


def passed_besides_tests(path: Path = PASSED) -> dict[str, str]:
    """What passed, without the files of tests."""
    return {name: found for name, found in known(path).items() if name == ROWS}


def write(passed: dict[str, str], path: Path = PASSED) -> None:
    """Keep what passed, a file a line."""
    text = "".join(f"{name}\t{found}\n" for name, found in sorted(passed.items()))
    path.write_text(text, encoding="utf-8")


def settled(root: Path = ROOT, path: Path = PASSED) -> list[str]:
    """The files whose marked tests passed with this very code."""
    before = known(path)
    return [name for name, found in digests(root).items() if before.get(name) == found]


def simulated() -> str:
    """The digest of all that the rows of the control law depend on."""
    graph = _graph(ROOT)
    own = graph.find_descendants("flowctl_lab.simulation") | {"flowctl_lab.simulation"}
    # What no import shows: which rows, and what they are compared with.
    besides = ["Makefile", ROWS, "adapters/flowctl_lab/simulate.py"]
    files = [path.relative_to(ROOT).as_posix() for path in _product(own, ROOT)]
    return digest([*besides, *files])


def run(command: Sequence[str], name: str, found: str, path: Path = PASSED) -> int:
    """Run ``command`` unless it passed with the digest ``found``; return its exit code."""
    passed = known(path)
    if passed.get(name) == found:
        print(f"Nothing that {name} depends on has changed: not run again.")
        return 0
    code = subprocess.call(command, stdout=subprocess.DEVNULL)  # the differences are on stderr
    if code == 0:
        write(passed | {name: found}, path)
    return code


if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1:], ROWS, simulated()))
