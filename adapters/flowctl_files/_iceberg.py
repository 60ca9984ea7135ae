"""Snapshots of Iceberg tables: their files and fields, from pyiceberg; on the driver alone."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from flowctl.core.records import Checkpoint
from flowctl.errors import ConfigError, MissingExtraError, SourceError
from flowctl.logs import ModuleLogger
from flowctl_files._iceberg_fields import Checks, DataFile, fields_of, refused
from flowctl_files._iceberg_filter import check_filter, pushed_down
from flowctl_files._layouts import Field
from flowctl_files._parquet_blocks import Columns
from flowctl_files._stores import Stores

if TYPE_CHECKING:
    from pyiceberg.table import Table

_log = ModuleLogger("flowctl.files")
_METADATA: Final = ".metadata.json"
_ANOTHER: Final = "Give the job another name: it will read all of the current snapshot."
# How a partition's identity ends: what a restart reads again, whatever was committed since.
_MARK: Final = re.compile(r" of snapshot (\d+), schema (\d+)$")


class Wanted(NamedTuple):
    """What the user gave: a snapshot's id (None: none), and a filter as ``pyarrow`` takes it."""

    snapshot_id: int | None
    filter: Any


class Snapshot(NamedTuple):
    """One snapshot of a table: its ``files`` by name, and its columns, ``fields``.

    ``mark`` ends the identity of each partition.
    """

    mark: str
    files: Mapping[str, DataFile]
    fields: Sequence[Field]
    checks: Checks


def is_loaded(given: object) -> TypeGuard[Table]:
    """Whether ``given`` is a table of pyiceberg."""
    tables: Any = sys.modules.get("pyiceberg.table")
    return tables is not None and isinstance(given, tables.Table)


def is_metadata(path: str) -> bool:
    """Whether ``path`` is a table's metadata file."""
    return path.endswith(_METADATA)


def load_table(given: Any, stores: Stores) -> Any:
    """Return the table that ``given`` is, or whose directory or metadata file it names."""
    if not isinstance(given, str):
        return given
    try:
        from pyiceberg.table import StaticTable
    except ModuleNotFoundError:
        raise MissingExtraError(
            "paths",
            f"{given} is an Iceberg table, and pyiceberg, which lists its files,",
            "iceberg",
        ) from None
    file = given if is_metadata(given) else _metadata_in(given.rstrip("/"), stores)
    try:
        return StaticTable.from_metadata(file)
    except Exception as error:  # its errors, and those of each file system, have no common base
        raise _unreadable(given, error) from error


def snapshot_of(table: Any, wanted: Wanted, checkpoint: Checkpoint, columns: Columns) -> Snapshot:
    """Return the snapshot that the job began with, else the wanted one, else the current one.

    A table to which nothing was written has none, and no files.
    """
    snapshot_id, schema_id = _chosen(table, wanted.snapshot_id, checkpoint)
    schema = table.schemas()[schema_id]
    # Filters name columns as the table calls them now: they may have been others then.
    is_current = schema_id == table.metadata.current_schema_id
    fields = fields_of(table, schema)
    check_filter(columns.filter, fields)
    row_filter = pushed_down(wanted.filter, schema) if is_current else None
    files = {} if snapshot_id is None else dict(_planned(table, snapshot_id, row_filter))
    return Snapshot(
        f" of snapshot {snapshot_id}, schema {schema_id}",
        files,
        fields,
        Checks(schema, table.name_mapping(), table.format_version, files),
    )


def _metadata_in(folder: str, stores: Stores) -> str:
    """Return the current metadata file of a table without a catalogue."""
    hint = f"{folder}/metadata/version-hint.text"
    try:
        with stores.open(hint) as file:
            version = int(file.read().decode())
    except (SourceError, ValueError):
        raise ConfigError(
            "paths",
            f"{folder} is an Iceberg table whose catalogue alone knows which metadata file is"
            " current: it has no metadata/version-hint.text.",
            remedy="Give the loaded table, load_catalog('NAME').load_table('db.table') of"
            " pyiceberg, or its metadata_location.",
        ) from None
    # The hint is written after the version that it names, so there may be newer ones.
    name = f"{folder}/metadata/v{{}}{_METADATA}"
    while _is_there(name.format(version + 1), stores):
        version += 1
    return name.format(version)


def _is_there(name: str, stores: Stores) -> bool:
    try:
        return stores.stat(name).size > 0
    except SourceError:
        return False


def _chosen(table: Any, wanted: int | None, checkpoint: Checkpoint) -> tuple[int | None, int]:
    """Return the ids of the snapshot and its schema."""
    begun = _begun_with(checkpoint)
    current = table.metadata.current_snapshot_id
    if begun is not None:
        snapshot_id, schema_id = begun
        if wanted not in (None, snapshot_id):
            raise ConfigError(
                "snapshot_id",
                f"{wanted} is not the snapshot that this job began with: {snapshot_id}.",
                remedy="Give the job another name, or leave snapshot_id out to go on.",
            )
        if schema_id not in table.schemas():
            raise SourceError(
                f"{_name(table)}: there is no schema {schema_id} any more; the job began with it.",
                remedy=_ANOTHER,
            )
        if table.snapshot_by_id(snapshot_id) is None:
            raise SourceError(
                f"{_name(table)}: there is no snapshot {snapshot_id} any more; the job began"
                " with it, and it has expired.",
                remedy=_ANOTHER,
            )
        if snapshot_id != current:
            _log.warning("older_snapshot_is_read", snapshot=snapshot_id, current=current)
        return begun
    if wanted is None:
        return current, table.metadata.current_schema_id
    if table.snapshot_by_id(wanted) is None:
        known = sorted(each.snapshot_id for each in table.snapshots())
        raise ConfigError(
            "snapshot_id",
            f"{_name(table)} has no snapshot {wanted}.",
            remedy=f"Its snapshots are {', '.join(map(str, known))}.",
        )
    schema_id = table.snapshot_by_id(wanted).schema_id
    return wanted, table.metadata.current_schema_id if schema_id is None else schema_id


def _begun_with(checkpoint: Checkpoint) -> tuple[int, int] | None:
    """Return the snapshot and schema in the identities of what is done."""
    for partition in checkpoint.partitions.values():
        identity = partition.mark if partition.end is None else partition.end
        if isinstance(identity, str) and (found := _MARK.search(identity)):
            return int(found[1]), int(found[2])
    return None


def _planned(table: Any, snapshot_id: int, row_filter: Any) -> Iterator[tuple[str, DataFile]]:
    """Yield the files of a snapshot; refuse those whose rows are not all the table's."""
    try:
        tasks = list(_tasks(table, snapshot_id, row_filter))
    except Exception as error:  # as above
        raise _unreadable(_name(table), error) from error
    seen: set[str] = set()
    for task in tasks:
        file = task.file
        name = _path_of(file.file_path)
        if task.delete_files:
            raise refused(name, "rows of it were deleted, by a delete file")
        if file.file_format.name != "PARQUET":
            raise refused(name, f"it is of the format {file.file_format.name}")
        if file.key_metadata is not None:
            raise refused(name, "it is encrypted")
        if name in seen:
            raise refused(name, "the table lists it twice")
        seen.add(name)
        keys = frozenset(
            field.source_id
            for field in table.specs()[file.spec_id].fields
            if str(field.transform) == "identity"
        )
        yield name, DataFile(file.record_count, file.file_size_in_bytes, keys)


def _tasks(table: Any, snapshot_id: int, row_filter: Any) -> Any:
    if row_filter is not None:
        try:
            return table.scan(row_filter=row_filter, snapshot_id=snapshot_id).plan_files()
        except (TypeError, ValueError):
            pass  # it takes less than pyarrow does, which has the last word
    return table.scan(snapshot_id=snapshot_id).plan_files()


def _path_of(name: str) -> str:
    """Return the name by which flowctl opens a file of a table."""
    scheme, colon, rest = name.partition(":")
    if colon and scheme == "file":
        return "/" + rest.lstrip("/")
    return f"s3:{rest}" if colon and scheme in ("s3a", "s3n") else name


def _name(table: Any) -> str:
    return f"the table {'.'.join(table.name()) if table.name() else table.location()}"


def _unreadable(name: str, error: Exception) -> SourceError:
    text = str(error).partition("\n")[0].rstrip(".")
    hint = " Compact it first (rewrite_data_files)." if "deletes" in text else ""
    return SourceError(
        f"{name}: can't be read as an Iceberg table: {type(error).__name__}: {text}.",
        remedy=f"Check the table, and that this user may read it.{hint}",
    )
