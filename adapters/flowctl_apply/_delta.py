"""Add the results of a finished job to a Delta table by one commit that names their files.

The files are already in the table's directory, so nothing is copied, unless the table is
partitioned: then the driver writes the rows once more.  The commit carries one of
Delta's application transactions, by which a repeated run sees that the commit was made.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from flowctl.errors import ConfigError, FlowctlError, InfrastructureError
from flowctl_apply._places import arrow_path
from flowctl_apply._results import ResultFile, Results, prefix_of
from flowctl_apply._rows import arrow

# Writer features of a table that are safe to ignore when files are only added.
_HARMLESS: Final = frozenset(
    {"appendOnly", "invariants", "timestampNtz", "deletionVectors", "domainMetadata"}
    | {"v2Checkpoint", "vacuumProtocolCheck", "changeDataFeed"}
)
_PLAIN_WRITER: Final = 2  # higher versions require features; version 7 lists them by name
_LISTS_FEATURES: Final = 7


class DeltaAppend:
    """Adds the results of a job to the Delta table at their place.  For one thread.

    Raises :class:`ConfigError` if deltalake is missing or the table takes no such rows.
    """

    def __init__(self, results: Results, schema: Any) -> None:
        try:
            self._deltalake: Any = importlib.import_module("deltalake")
        except ModuleNotFoundError:
            raise ConfigError(
                "mode",
                "deltalake, which writes to Delta tables, is not installed.",
                remedy="Run: pip install deltalake (the driver alone needs it).",
            ) from None
        self._results = results
        self._schema = schema
        self._url = arrow_path(results.place.url)

    def prepare(self) -> None:
        """Create the table if it is missing, and refuse an unusable one, before any work."""
        try:
            wanted = self._deltalake.Schema.from_arrow(self._schema)
            table = self._deltalake.DeltaTable.create(self._url, wanted, mode="ignore")
            self._check(table, wanted)
        except ConfigError:
            raise
        except Exception as error:  # deltalake's errors have no common base
            raise self._unusable(error) from error

    def _check(self, table: Any, wanted: Any) -> None:
        self._check_writable(table)
        there = {field.name: field for field in table.schema().fields}
        for field in wanted.fields:
            known = there.pop(field.name, None)
            if known is None or known.type != field.type or (field.nullable > known.nullable):
                raise self._refused(f"its column {field.name!r} is {known}, not {field}")
        missing = next((name for name, field in there.items() if not field.nullable), None)
        if missing is not None:
            raise self._refused(f"its column {missing!r} may not be null, and is not in the schema")
        if self._results.description() is None:
            self._check_new(table)

    def _check_writable(self, table: Any) -> None:
        protocol, metadata = table.protocol(), table.metadata()
        features = set(protocol.writer_features or ()) - _HARMLESS
        version = protocol.min_writer_version
        if features or _PLAIN_WRITER < version < _LISTS_FEATURES:
            raise self._refused(f"its writers need {sorted(features) or f'version {version}'}")
        columns = {field.name for field in self._schema}
        if missing := sorted(set(metadata.partition_columns) - columns):
            raise self._refused(f"it is partitioned by {missing[0]!r}, which is not in the schema")
        checks = [name for name in metadata.configuration if name.startswith("delta.constraints")]
        checks += [f.name for f in table.schema().fields if "delta.invariants" in f.metadata]
        if checks:
            raise self._refused(f"it checks rows ({checks[0]})")

    def _check_new(self, table: Any) -> None:
        """Refuse a new job whose files the table has: it would remove them as unknown."""
        prefix = prefix_of(self._results.job)
        if any(uri.rpartition("/")[2].startswith(prefix) for uri in table.file_uris()):
            raise ConfigError(
                "name",
                f"the table at {self._url} holds rows of an earlier job {self._results.job!r}.",
                remedy="Give another name.",
            )

    def append(self) -> None:
        """Add the finished job's files to the table, unless an earlier run has done it."""
        added = self._results.added()
        if added is None:  # another driver, which has added it, has begun a round with more
            return
        description, files = added
        app_id = f"flowctl:{description.name}:{description.run}"
        try:
            table = self._deltalake.DeltaTable(self._url)
            # One version of the transaction for each round, with the files that it added.
            version = description.round + 1
            if (table.transaction_version(app_id) or 0) < version:
                self._commit(table, (app_id, version), files)
        except FlowctlError:
            raise
        except Exception as error:
            raise self._unusable(error) from error

    def _commit(
        self, table: Any, transaction_id: tuple[str, int], files: Sequence[ResultFile]
    ) -> None:
        self._results.check_there(files)
        transaction = importlib.import_module("deltalake.transaction")
        once = self._deltalake.CommitProperties(
            app_transactions=[transaction.Transaction(*transaction_id)]
        )
        if table.metadata().partition_columns and files:
            self._write(table, once, files)
            return
        now_ms = int(time.time() * 1000)
        added = [
            transaction.AddAction(
                file.file,
                file.bytes,
                {},
                now_ms,
                True,
                msgspec.json.encode({"numRecords": file.rows}).decode(),
            )
            for file in files
        ]
        table.create_write_transaction(added, "append", table.schema(), commit_properties=once)

    def _write(self, table: Any, once: Any, files: Sequence[ResultFile]) -> None:
        """Write the rows into a partitioned table: its files hold one partition each.

        Memory holds one file at a time, and what deltalake collects for each partition.
        """
        parquet, pyarrow = importlib.import_module("pyarrow.parquet"), arrow()

        def batches() -> Iterator[Any]:
            for file in files:
                data = pyarrow.BufferReader(self._results.place.get(file.file))
                yield from parquet.read_table(data).cast(self._schema).to_batches()

        rows = pyarrow.RecordBatchReader.from_batches(self._schema, batches())
        self._deltalake.write_deltalake(table, rows, mode="append", commit_properties=once)

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            "mode",
            f"the Delta table at {self._url} can't take these files: {why}.",
            remedy="Give another out without mode=, and write the DataFrame that apply returns.",
        )

    def _unusable(self, error: Exception) -> InfrastructureError:
        return InfrastructureError(
            f"the Delta table at {self._url}: {str(error).partition(chr(10))[0]}.",
            remedy="Check that this machine may read and write it, and start the job again: what"
            " is done stays done.",
        )
