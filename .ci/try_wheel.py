"""Try flowctl as it is installed for this Python, alone with what its base install asks for."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import files, version
from pathlib import Path

_DISTRIBUTION = "flowctl-spark"


def main() -> None:
    packages = {path.parts[0] for path in files(_DISTRIBUTION) or () if path.name == "py.typed"}
    for name in packages:
        home = Path(importlib.import_module(name).__file__ or "").resolve()
        assert home.is_relative_to(Path(sys.prefix).resolve()), f"{name} is from {home}"
    import flowctl

    for name in flowctl.__all__:
        getattr(flowctl, name)  # loaded when they are first used
    _run_a_job()
    command = Path(sys.prefix) / "bin" / "flowctl"
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == f"flowctl {version(_DISTRIBUTION)}\n", said
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"Python {python}: {said.strip()}, {len(packages)} packages, a job of two records")


def _run_a_job() -> None:
    from flowctl.testing import run_local

    seen: list[int] = []
    run_local(lambda batch: seen.extend(record.value for record in batch), [1, 2])
    assert sorted(seen) == [1, 2], seen


if __name__ == "__main__":
    main()
