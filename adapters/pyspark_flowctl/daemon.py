"""What Spark forks its Python workers from, in a session of our own: see ``session.py`` for when.

Spark imports what a worker needs after each fork, so every worker pays for it again: 12 bolts took
5 s of CPU time before their first tuple.  Here it is imported once, before the first fork.  Spark
avoids that as pandas and pyarrow start threads, which do not survive a fork; nothing imported here
does.

Spark also has workers import it from the zip within its own folder, where nothing is compiled: that
alone takes half a second of CPU time before the first fork.  The folder is used instead.
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
#: What bolts import besides where the driver has imported the key: SqlSink its libraries at its
#: first write.  None of them starts a thread.
ALSO: Final = {
    "flowctl_files": ("flowctl_files",),
    "flowctl_sql": ("flowctl_sql.sink", "psycopg", "sqlalchemy.dialects.postgresql"),
}
#: The variable in which the driver names keys of :data:`ALSO`, separated by commas.
VARIABLE: Final = "FLOWCTL_PRELOAD"


def prefer_folders() -> None:
    """Take pyspark and py4j from where they are installed, if that is where Spark's zips lie.

    So both are of one release.  A Spark from elsewhere keeps its zips.
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
    """Import what every bolt needs; what is missing is left for the bolt to report."""
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
