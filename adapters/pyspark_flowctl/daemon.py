"""The daemon from which Spark forks Python workers in sessions of flowctl: see ``session.py``.

Spark lets each worker import its modules after the fork, so every worker pays again: 12 bolts took
5 s of CPU time before their first tuple.  This daemon imports them once, before the first fork.
Spark avoids that because pandas and pyarrow start threads, which do not survive a fork; no module
imported here starts any.

Spark also has workers import pyspark from the zip in its folder, where nothing is compiled: that
alone takes half a second of CPU time before the first fork.  The daemon uses the folder instead.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import zipimport
from pathlib import Path
from typing import Any, Final

#: What every bolt imports.
PRELOADED: Final = ("pyspark.worker", "pyspark_flowctl.task", "flowctl.bolts.worker")
#: Modules that bolts will also import if the driver has imported the key, such as SqlSink's
#: libraries at its first write.  None of them starts a thread.
ALSO: Final = {
    "flowctl_files": ("flowctl_files",),
    "flowctl_sql": ("flowctl_sql.sink", "psycopg", "sqlalchemy.dialects.postgresql"),
}
#: The environment variable in which the driver names keys of :data:`ALSO`, separated by commas.
VARIABLE: Final = "FLOWCTL_PRELOAD"


def prefer_folders() -> None:
    """Import pyspark and py4j from their installed folders, if Spark's zips are in there.

    Then both are of the same release.  A Spark from elsewhere keeps its zips.
    """
    for path in [entry for entry in sys.path if entry.endswith(".zip")]:
        home = Path(path).parent.parent.parent  # pyspark/python/lib/pyspark.zip
        package = Path(path).name.partition(".zip")[0].partition("-")[0]  # py4j-0.10.9-src.zip
        installed = home.parent
        if (
            home.name == "pyspark"
            and str(installed) in sys.path
            and (installed / package / "__init__.py").is_file()
        ):
            sys.path.remove(path)


def preload() -> None:
    """Import the modules that every bolt needs; a missing one is left for the bolt to report."""
    asked = os.environ.get(VARIABLE, "").split(",")
    for name in (*PRELOADED, *(name for key in asked for name in ALSO.get(key, ()))):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # When a worker adds a directory to sys.path, each importer of a zip in this cache reads its
    # whole table of contents again: pyspark.zip has 18 of them, and 0.1 s of CPU time for each
    # worker.  Without an entry Python makes a new importer if it needs one.
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def main() -> None:
    """Fork workers for Spark until it closes the pipe."""
    prefer_folders()
    daemon: Any = importlib.import_module("pyspark.daemon")  # untyped
    preload()
    daemon.manager()


if __name__ == "__main__":
    main()
