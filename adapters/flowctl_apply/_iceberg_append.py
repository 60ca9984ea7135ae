"""Add the results of a finished job to an Iceberg table, by one commit of pyiceberg.

The files of a table without partitions are named by the commit where they are; rows of others are
copied into it.  The snapshot carries the job's run, by which a repeated run sees that it was made.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any, Final

from flowctl.errors import ConfigError, FlowctlError, InfrastructureError, MissingExtraError
from flowctl_apply._results import ResultFile, Results
from flowctl_apply._rows import arrow

_MARK: Final = "flowctl"  # the property of the snapshot
_NAMES_IN_TYPES: Final = re.compile(r"large_|\b(item|element|key|value)\b(: | )|( not null)")


class IcebergAppend:
    """Adds the results of a job to ``table``: a ``Table`` of pyiceberg, or its name.

    A name begins with the catalogue's, as pyiceberg's configuration has it.  For one thread.
    Raises :class:`ConfigError` if there is no such table or it takes no such rows.
    """

    def __init__(self, table: Any, results: Results, schema: Any) -> None:
        self._table: Any = _loaded(table) if isinstance(table, str) else table
        self._name = ".".join(self._table.name())
        self._results = results
        self._schema = schema

    def prepare(self) -> None:
        """Refuse an unusable table, before any work."""
        there = {field.name: field for field in self._table.schema().as_arrow()}
        for field in self._schema:
            known = there.pop(field.name, None)
            if known is None or _plain(known.type) != _plain(field.type):
                raise self._refused(f"its column {field.name!r} is {known}, not {field}")
            if field.nullable and not known.nullable:
                raise self._refused(f"its column {field.name!r} may not be null")
        if missing := next((name for name, one in there.items() if not one.nullable), None):
            raise self._refused(f"its column {missing!r} may not be null, and is not in the schema")
        if self._results.description() is None:
            mine = f"flowctl:{self._results.job}:"
            if any(mark.startswith(mine) for mark in self._marks()):
                raise ConfigError(
                    "name",
                    f"{self._name} holds rows of an earlier job {self._results.job!r}.",
                    remedy="Give another name.",
                )

    def append(self) -> None:
        """Add the finished job's rows to the table, unless an earlier run has done it."""
        added = self._results.added()
        if added is None:  # another driver, which has added it, has begun a round with more
            return
        description, files = added
        mark = f"flowctl:{description.name}:{description.run}:{description.round}"
        done = f"{self._results.directory}/appended-{description.round}"
        place = self._results.place
        try:
            if any(file.name == done for file in place.names(self._results.directory)):
                return
            self._table.refresh()
            if mark not in self._marks():
                self._commit(mark, files)
            # Snapshots expire, and their properties with them.
            place.put(done, mark.encode())
        except FlowctlError:
            raise
        except Exception as error:  # pyiceberg's errors have no common base
            raise InfrastructureError(
                f"the Iceberg table {self._name}: {str(error).partition(chr(10))[0]}.",
                remedy="Check that this machine may write it, and start the job again: what is"
                " done stays done.",
            ) from error

    def _marks(self) -> set[str]:
        found = [snapshot.summary for snapshot in self._table.metadata.snapshots]
        return {
            mark
            for summary in found
            if summary is not None and (mark := summary.additional_properties.get(_MARK))
        }

    def _commit(self, mark: str, files: Sequence[ResultFile]) -> None:
        self._results.check_there(files)
        place = self._results.place
        if not files:
            return
        if self._table.spec().is_unpartitioned():
            paths = [place.path(file.file) for file in files]
            self._table.add_files(paths, snapshot_properties={_MARK: mark})
            return
        parquet, pyarrow = importlib.import_module("pyarrow.parquet"), arrow()
        read = [parquet.read_table(pyarrow.BufferReader(place.get(one.file))) for one in files]
        self._table.append(pyarrow.concat_tables(read), snapshot_properties={_MARK: mark})

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            "table",
            f"the Iceberg table {self._name} can't take these rows: {why}.",
            remedy="Change schema, or leave table out and write the DataFrame that apply returns.",
        )


def _plain(kind: Any) -> str:
    """Return a type as text, without what differs between writers of one type."""
    return _NAMES_IN_TYPES.sub("", str(kind))


def _loaded(name: str) -> Any:
    try:
        catalog = importlib.import_module("pyiceberg.catalog")
    except ModuleNotFoundError:
        raise MissingExtraError("table", "pyiceberg", "iceberg") from None
    first, _, rest = name.partition(".")
    try:
        return catalog.load_catalog(first).load_table(rest)
    except Exception as error:
        raise ConfigError(
            "table",
            f"{name!r} can't be loaded: {str(error).partition(chr(10))[0]}.",
            remedy="Name it as catalog.namespace.table, with the catalogue in pyiceberg's"
            " configuration; or give a Table of pyiceberg.",
        ) from error
