"""Columns of an Iceberg table: what its files have to hold for a reader without pyiceberg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowctl.errors import ConfigError, SourceError
from flowctl_files._layouts import ByField, Field
from flowctl_files._parquet_blocks import Columns, RowsReader


class DataFile(NamedTuple):
    """What the table says of a file: its rows, its size [bytes], and the ids of the fields that it
    is partitioned by, in which all of its rows are equal."""

    rows: int
    size: int
    keys: frozenset[int]


class Checks:
    """Says whether a file can be read as the table means it; by :class:`ConfigError` and
    :class:`SourceError`.  Thread-safe.

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
        """Raise an error if the file isn't what the table says, or ``columns`` can't be read."""
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
        """Return the types that the file has, by field id."""
        import pyarrow
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        if not columns:
            return {}
        part = pyarrow.schema([reader.schema.field(column) for column in columns])
        try:
            schema: Any = pyarrow_to_schema(part, self._names, format_version=self._version)
        except Exception as error:  # its errors have no common base
            raise refused(name, str(error).partition("\n")[0].rstrip(".")) from error
        return {field.field_id: field.field_type for field in schema.fields}


def fields_of(table: Any, schema: Any) -> list[Field]:
    """Return the columns of the snapshot, with what they are in files that lack them."""
    import pyarrow
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    aliases = {each.field_id: frozenset(each.names) for each in table.name_mapping() or ()}
    fields = []
    for field, arrow in zip(schema.fields, schema_to_pyarrow(schema), strict=True):
        # What a narrower type of a file becomes.
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
    """Return the error for a file that would be read wrongly."""
    return ConfigError(
        "paths",
        f"{name} belongs to an Iceberg table, and {why}: it would be read wrongly.",
        remedy="Have the table's files written again (in Spark: CALL system.rewrite_data_files"
        " with rewrite-all) and give the new snapshot; or leave the column out with columns=.",
    )


def _wanted(columns: Columns) -> frozenset[str] | None:
    """Return which columns are read; None: all."""
    if columns.names is None or columns.filter_names is None:
        return None
    return columns.filter_names.union(columns.names)


def _check_missing(name: str, field: Any, keys: frozenset[int]) -> None:
    """Raise an error if what the rows have in ``field`` can't be known."""
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
    """Whether values of a file's type are, or can be made, those of the table."""
    from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType

    if isinstance(of_file, DecimalType) and isinstance(of_table, DecimalType):
        widens = of_file.precision <= of_table.precision
        return bool(of_file.scale == of_table.scale and widens)
    if (type(of_file), type(of_table)) in {(IntegerType, LongType), (FloatType, DoubleType)}:
        return True
    return _same(of_file, of_table)


def _same(of_file: Any, of_table: Any) -> bool:
    """Whether two types hold the same, with the same names and ids."""
    if type(of_file) is not type(of_table):
        # Files may not say that 16 bytes are a UUID.
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
    """Return the type as files have it mostly."""
    import pyarrow

    if kind == pyarrow.large_string():
        return pyarrow.string()
    return pyarrow.binary() if kind == pyarrow.large_binary() else kind
