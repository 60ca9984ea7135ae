"""Files and fields of a snapshot of an Iceberg table, from pyiceberg; used only on the driver."""

from __future__ import annotations

import datetime
import functools
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from flowctl.core.records import Checkpoint
from flowctl.errors import ConfigError, MissingExtraError, SourceError
from flowctl.logs import ModuleLogger
from flowctl_files._layouts import ByField, Field
from flowctl_files._parquet_blocks import Columns, RowsReader
from flowctl_files._stores import Stores

if TYPE_CHECKING:
    from pyiceberg.table import Table


# -- Filters in pyiceberg's words, so that files are left out by what the table says of them ---


# The largest int up to which each int has an exact double.
_EXACT_MAX: Final = 1 << 53


def check_filter(wanted: Any, fields: list[Field]) -> None:
    """Raise :class:`ConfigError` if an expression of pyarrow doesn't fit a table's columns."""
    import pyarrow

    if wanted is None:
        return
    schema = pyarrow.schema([(field.name, field.type) for field in fields])
    try:
        schema.empty_table().filter(wanted)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise ConfigError(
            "filter",
            f"{str(error).partition(chr(10))[0].rstrip('.')}.",
            remedy=f"The table's columns are {', '.join(f'{f.name}: {f.type}' for f in fields)}.",
        ) from error


def pushed_down(wanted: Any, schema: Any) -> Any:
    """Return an expression of pyiceberg that is true wherever ``wanted`` is; None if there is none.

    ``wanted`` is a list of terms, as ``pyarrow.parquet`` takes; for an expression of pyarrow the
    result is None.  ``schema`` is the table's.
    """
    if not isinstance(wanted, list) or not wanted:
        return None
    from pyiceberg.expressions import AlwaysTrue, And, Or

    types = {field.name: str(field.field_type) for field in schema.fields}
    either = wanted if isinstance(wanted[0], list) else [wanted]
    every: Any = AlwaysTrue()
    terms = [functools.reduce(And, [_term(each, types) for each in all_], every) for all_ in either]
    return functools.reduce(Or, terms)


def _term(term: tuple[str, str, Any], types: Mapping[str, str]) -> Any:
    from pyiceberg import expressions as e

    name, operator, value = term
    is_exact = _EXACT.get(types.get(name, ""), _never)
    operators: dict[str, Any] = {
        "=": e.EqualTo,
        "==": e.EqualTo,
        "<": e.LessThan,
        "<=": e.LessThanOrEqual,
        ">": e.GreaterThan,
        ">=": e.GreaterThanOrEqual,
    }
    if operator in operators and is_exact(value):
        return operators[operator](name, value)
    if operator == "in" and value and all(map(is_exact, value)):
        return e.In(name, list(value))
    # A term with "!=" would exclude hardly any file.
    return e.AlwaysTrue()


def _never(value: object) -> bool:
    del value
    return False


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_double(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and _is_int(value) and abs(value) <= _EXACT_MAX


def _is_date(value: object) -> bool:
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)


# pyiceberg rounds values of other types to the column's type.  It would then leave out files with
# rows that pyarrow, which decides on each row, accepts.
_EXACT: Final[Mapping[str, Callable[[object], bool]]] = {
    "boolean": lambda value: isinstance(value, bool),
    "int": _is_int,
    "long": _is_int,
    "double": _is_double,
    "string": lambda value: isinstance(value, str),
    "date": _is_date,
    "timestamp": lambda value: isinstance(value, datetime.datetime) and value.tzinfo is None,
    "timestamptz": lambda value: isinstance(value, datetime.datetime) and value.tzinfo is not None,
}


# -- Columns of an Iceberg table: what its files have to hold for a reader without pyiceberg ---


class DataFile(NamedTuple):
    """The table's entry of a file.

    It has the number of rows, the size [bytes] and the ids of the fields that the file is
    partitioned by, in which all of its rows are equal.
    """

    rows: int
    size: int
    keys: frozenset[int]


class Checks:
    """Checks that a file can be read as the table means it.  Thread-safe.

    ``schema`` is the snapshot's, ``names`` the table's mapping of names, both of pyiceberg.
    """

    def __init__(
        self, schema: Any, names: Any, version: int, files: Mapping[str, DataFile]
    ) -> None:
        self._schema = schema
        self._names = names
        self._version = version
        self._files = files

    def check(self, name: str, size: int, reader: RowsReader, columns: Columns) -> None:
        """Raise an error if the file isn't what the table says or ``columns`` can't be read."""
        file = self._files[name]
        if (reader.rows, size) != (file.rows, file.size):
            raise SourceError(
                f"{name}: it has {reader.rows} rows in {size} bytes, and the table says"
                f" {file.rows} in {file.size}: it is another file.",
                remedy="Bring the file back, or give a snapshot without it.",
            )
        layout = reader.layout
        assert isinstance(layout, ByField)
        wanted = _wanted(columns)
        fields = [field for field in self._schema.fields if wanted is None or field.name in wanted]
        found = {field.field_id: layout.columns[field.field_id] for field in fields}
        types = self._types(name, reader, [column for column in found.values() if column])
        for field in fields:
            if found[field.field_id] is None:
                _check_missing(name, field, file.keys)
            elif not _becomes(types.get(field.field_id), field.field_type):
                raise refused(
                    name,
                    f"its column {field.name!r} is {types.get(field.field_id)} where the table has"
                    f" {field.field_type}",
                )

    def _types(self, name: str, reader: RowsReader, columns: Sequence[str]) -> dict[int, Any]:
        """Return the types of the file's columns, by field id."""
        import pyarrow
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        if not columns:
            return {}
        part = pyarrow.schema([reader.schema.field(column) for column in columns])
        try:
            schema: Any = pyarrow_to_schema(part, self._names, format_version=self._version)
        except Exception as error:  # these errors have no common base class
            raise refused(name, str(error).partition("\n")[0].rstrip(".")) from error
        return {field.field_id: field.field_type for field in schema.fields}


def fields_of(table: Any, schema: Any) -> list[Field]:
    """Return the columns of the snapshot, with their values for files that lack them."""
    import pyarrow
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    aliases = {each.field_id: frozenset(each.names) for each in table.name_mapping() or ()}
    fields = []
    for field, arrow in zip(schema.fields, schema_to_pyarrow(schema), strict=True):
        # The wider types that a file's type may be converted to.
        wide = arrow.type in (pyarrow.int64(), pyarrow.float64())
        wide = wide or pyarrow.types.is_decimal(arrow.type)
        fields.append(
            Field(
                field.field_id,
                field.name,
                _small(arrow.type),
                field.initial_default,
                arrow.type if wide else None,
                aliases.get(field.field_id, frozenset()),
            )
        )
    return fields


def refused(name: str, why: str) -> ConfigError:
    """Return the error for a file whose rows would be read wrongly."""
    return ConfigError(
        "paths",
        f"{name} belongs to an Iceberg table, and {why}: it would be read wrongly.",
        remedy="Have the table's files written again (in Spark: CALL system.rewrite_data_files"
        " with rewrite-all) and give the new snapshot; or leave the column out with columns=.",
    )


def _wanted(columns: Columns) -> frozenset[str] | None:
    """Return the ids of the columns to read; None for all."""
    if columns.names is None or columns.filter_names is None:
        return None
    return columns.filter_names.union(columns.names)


def _check_missing(name: str, field: Any, keys: frozenset[int]) -> None:
    """Raise an error if the value of ``field``, which the file lacks, can't be determined."""
    if field.field_id in keys:
        raise refused(name, f"its column {field.name!r} stands in the table's manifests alone")
    default = field.initial_default
    if default is None and field.required:
        raise refused(name, f"it lacks the required column {field.name!r}")
    if not isinstance(default, bool | int | float | str | None):
        raise refused(name, f"it lacks {field.name!r}, whose default is {default!r}")
    if isinstance(default, str) and str(field.field_type) != "string":
        raise refused(name, f"it lacks {field.name!r}, whose default is {default!r}")


def _becomes(of_file: Any, of_table: Any) -> bool:
    """Whether values of a file's type are of the table's type or can be converted to it."""
    from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType

    if isinstance(of_file, DecimalType) and isinstance(of_table, DecimalType):
        widens = of_file.precision <= of_table.precision
        return bool(of_file.scale == of_table.scale and widens)
    if (type(of_file), type(of_table)) in {(IntegerType, LongType), (FloatType, DoubleType)}:
        return True
    return _same(of_file, of_table)


def _same(of_file: Any, of_table: Any) -> bool:
    """Whether two types are the same, including the names and ids of nested fields."""
    if type(of_file) is not type(of_table):
        # Some files don't mark their 16 bytes as a UUID.
        return (str(of_file), str(of_table)) == ("fixed[16]", "uuid")
    if of_file.is_primitive:
        return bool(of_file == of_table)
    inner, wanted = of_file.fields, of_table.fields
    if len(inner) != len(wanted):
        return False
    return all(
        (one.field_id, one.name) == (two.field_id, two.name)
        and _same(one.field_type, two.field_type)
        for one, two in zip(inner, wanted, strict=True)
    )


def _small(kind: Any) -> Any:
    """Return the variant of the type that most files use."""
    import pyarrow

    if kind == pyarrow.large_string():
        return pyarrow.string()
    return pyarrow.binary() if kind == pyarrow.large_binary() else kind


# -- Snapshots of Iceberg tables ---------------------------------------------------------------


_log = ModuleLogger("flowctl.files")
_METADATA: Final = ".metadata.json"
_ANOTHER: Final = "Give the job another name: it will read all of the current snapshot."
# End of a partition's identity: the snapshot that a restart reads again, whatever came later.
_MARK: Final = re.compile(r" of snapshot (\d+), schema (\d+)$")


class Wanted(NamedTuple):
    """The user's wishes: a snapshot's id (None: not given), and a filter in pyarrow's form."""

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
    except Exception as error:  # these errors have no common base class
        raise _unreadable(given, error) from error


def snapshot_of(table: Any, wanted: Wanted, checkpoint: Checkpoint, columns: Columns) -> Snapshot:
    """Return the snapshot that the job began with, else the wanted one, else the current one.

    A table to which nothing was written has no snapshot and no files.
    """
    snapshot_id, schema_id = _chosen(table, wanted.snapshot_id, checkpoint)
    schema = table.schemas()[schema_id]
    # Filters use the table's current column names, which may have belonged to other columns then.
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
    # The hint is written after the version that it names, so newer versions may exist.
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
    """Return the ids of the chosen snapshot and of its schema."""
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
    """Return the ids of snapshot and schema that the identities of done partitions name."""
    for partition in checkpoint.partitions.values():
        identity = partition.mark if partition.end is None else partition.end
        if isinstance(identity, str) and (found := _MARK.search(identity)):
            return int(found[1]), int(found[2])
    return None


def _planned(table: Any, snapshot_id: int, row_filter: Any) -> Iterator[tuple[str, DataFile]]:
    """Yield the files of a snapshot; refuse files with rows that were deleted from the table."""
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
            pass  # pyiceberg's filter might exclude rows that pyarrow, which decides, accepts
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
