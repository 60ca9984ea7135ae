"""Try flowctl as it is installed for this Python: ``try_wheel.py [EXTRA]...``.

Without an extra it is alone with what its base install asks for; with ``lab`` and ``storm`` the
parts that have a wheel of their own are there too.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import tempfile
from importlib.metadata import files, version
from pathlib import Path

_DISTRIBUTION = "flowctl-spark"
_PARTS = ("lab", "storm")


def main(extras: list[str]) -> None:
    names = [_DISTRIBUTION, *(f"{_DISTRIBUTION}-{extra}" for extra in extras)]
    packages = {
        path.parts[0] for name in names for path in files(name) or () if path.name == "py.typed"
    }
    for name in packages:
        home = Path(importlib.import_module(name).__file__ or "").resolve()
        assert home.is_relative_to(Path(sys.prefix).resolve()), f"{name} is from {home}"
    for part in _PARTS:
        assert (f"flowctl_{part}" in packages) is (part in extras), part
    import flowctl

    for name in flowctl.__all__:
        getattr(flowctl, name)  # loaded when they are first used
    _run_a_job()
    _write_a_page()
    said = _flowctl("--version").stdout
    assert said == f"flowctl {version(_DISTRIBUTION)}\n", said
    _try_the_lab(is_there="lab" in extras)
    if "storm" in extras:
        _run_a_topology()
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"Python {python}: {said.strip()}, {len(packages)} packages, a job of two records")


def _flowctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.prefix) / "bin" / "flowctl"
    return subprocess.run([command, *arguments], capture_output=True, text=True, check=False)


def _run_a_job() -> None:
    from flowctl.testing import run_local

    seen: list[int] = []
    run_local(lambda batch: seen.extend(record.value for record in batch), [1, 2])
    assert sorted(seen) == [1, 2], seen


def _write_a_page() -> None:
    """The page is a file in the wheel."""
    from flowctl.instrumentation.page import PageState, page_with

    assert "<html" in page_with(PageState().whole())


def _try_the_lab(*, is_there: bool) -> None:
    """Its commands run, or say what to install."""
    if is_there:
        done = _flowctl("simulate", "--list")
        assert done.returncode == 0 and "just_full" in done.stdout, done
    for command in ("simulate", "demo") if not is_there else ():
        done = _flowctl(command)
        assert done.returncode == 2 and f"'{_DISTRIBUTION}[lab]'" in done.stderr, done


def _run_a_topology() -> None:
    from flowctl import FileCheckpointStore, Records
    from flowctl_storm import LocalStages, Topology

    seen: list[int] = []
    topology = Topology("try")
    topology.spout("numbers", Records([1, 2]))
    topology.bolt("take", lambda given, out: seen.append(given.value)).shuffle("numbers")
    with tempfile.TemporaryDirectory() as place:
        # Else the next Python finds that the job is done.
        topology.run(LocalStages(), checkpoint=FileCheckpointStore(place), view="off")
    assert sorted(seen) == [1, 2], seen


if __name__ == "__main__":
    main(sys.argv[1:])
