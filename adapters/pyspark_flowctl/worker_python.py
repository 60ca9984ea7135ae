"""Check on the driver, before a job, that the Python that Spark starts for workers has flowctl.

Without PYSPARK_PYTHON Spark starts ``python3`` from the PATH.  If the driver's environment is not
activated, that is another Python, and each task fails with ``No module named 'pyspark_flowctl'``.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from typing import Any

from flowctl.errors import ConfigError
from pyspark_flowctl.jobs import is_local

_LOOK = "import importlib.util as u; raise SystemExit(u.find_spec('pyspark_flowctl') is None)"
_LOOK_S = 30.0  # a Python starts in much less; a slower one will report itself later


def check_active_python() -> None:
    """Call :func:`check_worker_python` for this process's SparkContext, if there is one."""
    from pyspark import SparkContext

    check_worker_python(SparkContext._active_spark_context)


def check_worker_python(context: Any) -> None:
    """Raise :class:`ConfigError` if workers on this machine would run a Python without flowctl.

    ``context`` is a SparkContext or None.  Passes silently where the driver can't know: on a
    cluster, on Spark Connect, and if files are sent with the job.
    """
    if context is None or not is_local(context.master) or context._python_includes:
        return
    used = str(context.pythonExec)
    path = shutil.which(used)
    extra = tuple(sorted((str(k), str(v)) for k, v in context.environment.items()))
    if path != sys.executable and not (path and _has_flowctl(path, extra)):
        what = "is not there" if path is None else "has no flowctl"
        raise ConfigError(
            "PYSPARK_PYTHON",
            f"Spark's workers run {used!r}, which {what}.",
            remedy=f"Set PYSPARK_PYTHON={sys.executable} (or activate its environment) before the"
            " Spark session starts.",
        )


@functools.lru_cache
def _has_flowctl(path: str, extra: tuple[tuple[str, str], ...]) -> bool:
    try:
        looked = subprocess.run(
            [path, "-c", _LOOK],
            env={**os.environ, **dict(extra)},
            capture_output=True,
            check=False,
            timeout=_LOOK_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True  # nobody knows
    return looked.returncode == 0
