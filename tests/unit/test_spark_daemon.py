"""What Spark forks the workers of a session of our own from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import flowctl
from pyspark_flowctl.daemon import PRELOADED
from pyspark_flowctl.session import FORK_FROM_BOLTS, _settings

_DAEMON = "spark.python.daemon.module"
_PATH = "spark.executorEnv.PYTHONPATH"

_PRELOADS = """
import os, sys, zipfile, zipimport
sys.path.insert(0, sys.argv[1])
import zipped
from pyspark_flowctl.daemon import PRELOADED, preload
assert any(isinstance(one, zipimport.zipimporter) for one in sys.path_importer_cache.values())
preload()
assert not set(PRELOADED) - set(sys.modules), "each fork would import it again"
assert not any(isinstance(one, zipimport.zipimporter) for one in sys.path_importer_cache.values())
assert len(os.listdir("/proc/self/task")) == 1, "threads don't survive a fork"
assert not {"pandas", "pyarrow", "numpy"} & set(sys.modules)
import zipped.inner  # what is in a zip can still be imported
"""


# Its own daemon does too.
imports_numpy = pytest.mark.skipif(
    pyspark.__version__.startswith(("3.", "4.0.", "4.1.")),
    reason="the worker of Spark 3.5 to 4.1 imports numpy, which has a thread",
)


@imports_numpy
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
def test_it_imports_what_bolts_need_and_starts_no_thread(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "some.zip", "w") as made:
        made.writestr("zipped/__init__.py", "")
        made.writestr("zipped/inner.py", "")
    command = [sys.executable, "-c", _PRELOADS, str(tmp_path / "some.zip")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


_PREFERS = """
import os, sys
from pathlib import Path
import pyspark
home = Path(pyspark.__file__).parent
zips = [str(path) for path in (home / "python" / "lib").glob("*.zip")]
assert len(zips) == 2, zips
strange = os.environ["STRANGE"]
sys.path[:0] = [*zips, strange]
from pyspark_flowctl.daemon import prefer_folders
prefer_folders()
assert not set(zips) & set(sys.path), "nothing in them is compiled"
assert strange in sys.path, "a Spark of another release"
"""


def test_a_spark_that_is_installed_is_not_imported_from_its_zip(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    strange = str(tmp_path / "spark" / "python" / "lib" / "pyspark.zip")
    subprocess.run(
        [sys.executable, "-c", _PREFERS], check=True, env={**os.environ, "STRANGE": strange}
    )


def test_what_is_missing_is_left_for_the_bolt_to_report() -> None:
    code = (
        "import sys; sys.modules['flowctl.bolts.worker'] = None\n"
        "from pyspark_flowctl.daemon import preload; preload()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "flowctl.bolts.worker" in PRELOADED


def test_workers_elsewhere_are_forked_from_it_if_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", "/nonexistent")
    assert _settings(None, 3)[_DAEMON] == "pyspark_flowctl.daemon"
    few, many = (_settings("spark://elsewhere:7077", n) for n in (FORK_FROM_BOLTS - 1, 200))
    assert _DAEMON not in few, "flowctl may be missing there"
    assert many[_DAEMON] == "pyspark_flowctl.daemon"
    assert _PATH not in many, "its files are elsewhere"


@imports_numpy
def test_it_imports_the_sinks_libraries_if_the_job_has_the_sink() -> None:
    code = (
        "import os, sys, flowctl_sql\n"
        "from pyspark_flowctl.session import _settings\n"
        "made = _settings('spark://elsewhere:7077', 200)\n"
        "os.environ['FLOWCTL_PRELOAD'] = made['spark.executorEnv.FLOWCTL_PRELOAD']\n"
        "assert 'sqlalchemy' not in sys.modules\n"
        "from pyspark_flowctl.daemon import preload; preload()\n"
        "assert {'sqlalchemy', 'psycopg'} <= set(sys.modules)\n"
        "assert 'flowctl_files' not in sys.modules\n"
        "assert len(os.listdir('/proc/self/task')) == 1, 'threads do not survive a fork'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_finds_the_flowctl_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(flowctl.__file__).absolute().parent.parent)
    monkeypatch.setenv("SPARK_CONF_DIR", "/nonexistent")
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    path = _settings(None, 3)[_PATH].split(os.pathsep)
    assert root in path and path[-1] == "/some/where"
    # What is installed needs no help, and would come before the standard library.
    monkeypatch.setattr("site.getsitepackages", lambda: [*path])
    assert _PATH not in _settings(None, 3)
