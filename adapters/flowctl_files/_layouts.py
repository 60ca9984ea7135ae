"""Where the columns of a row come from: from the file, from directories' names, or by field id."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote

from flowctl.errors import SourceError

# -- Columns that stand in the names of directories: ``year=2026/month=11/part-0.parquet`` -----


# The directory name that Hive and Spark write for a null value.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_INT = re.compile(r"-?(0|[1-9][0-9]{0,17})")

Keys: TypeAlias = Mapping[str, str | None]


def keys_of(name: str, base: str) -> dict[str, str | None]:
    """Return the columns in the directories of ``name`` below ``base``, values as text."""
    inner = name[len(base) :] if name.startswith(base) else ""
    keys: dict[str, str | None] = {}
    for folder in inner.split("/")[:-1]:
        key, equals, value = folder.partition("=")
        if equals and key:
            keys[unquote(key)] = None if value == _NULL else unquote(value)
    return keys


def int_columns(files: Iterable[Keys]) -> frozenset[str]:
    """Return the columns whose values are whole numbers in all files; the others stay text.

    Numbers with leading zeros stay text, or ``month=01`` would not be found again.
    """
    names: set[str] = set()
    text: set[str] = set()
    for keys in files:
        names |= keys.keys()
        text |= {k for k, v in keys.items() if v is not None and not _INT.fullmatch(v)}
    return frozenset(names - text)


def typed(keys: Keys, ints: frozenset[str]) -> dict[str, Any]:
    """Return the values as pyarrow scalars; ``ints`` are from :func:`int_columns`."""
    import pyarrow

    scalars: dict[str, Any] = {}
    for name, value in keys.items():
        is_int = name in ints
        kind = pyarrow.int64() if is_int else pyarrow.string()
        scalars[name] = pyarrow.scalar(int(value) if is_int and value is not None else value, kind)
    return scalars


# -- How the columns of a file's rows come from the file ---------------------------------------


_FIELD_ID: Final = b"PARQUET:field_id"


class Layout(Protocol):
    """The columns of one file's rows.

    ``names`` are the names of all columns.  ``keys`` are the columns with the same value in each
    row, as pyarrow scalars.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def keys(self) -> Mapping[str, Any]: ...

    def in_file(self, wanted: Container[str] | None) -> list[str] | None:
        """Return the file's columns that ``wanted`` columns are made from; None for all."""

    def rows(self, batch: Any) -> Any:
        """Return the rows for a ``pyarrow.RecordBatch`` that was read from the file."""

    def is_plain(self, wanted: Container[str]) -> bool:
        """Whether each ``wanted`` column is a key or needs no conversion."""


class Layouts(Protocol):
    """Layouts of the files of a source.  Picklable."""

    def of(self, name: str, schema: Any) -> Layout:
        """Return the layout of a file whose columns are ``schema``."""


class Directories:
    """Columns of the file, unchanged, and columns from the names of its directories.

    ``bases`` has the directory in which each file was found, ``ints`` the columns from directories'
    names that are numbers.
    """

    def __init__(self, bases: Mapping[str, str], ints: frozenset[str]) -> None:
        # Kept by directory: there are few, which keeps the pickled reader small.
        self._bases = (*sorted(set(bases.values()), key=len, reverse=True), "")
        self._ints = ints

    def of(self, name: str, schema: Any) -> Layout:
        """See :class:`Layouts`.  A column that the file has too is read from the file."""
        base = next(each for each in self._bases if name.startswith(each))
        return WithKeys(schema, typed(keys_of(name, base), self._ints))


def with_column(batch: Any, name: str, values: Any) -> Any:
    """Return ``batch`` with one more column; pyarrow's ``append_column`` is of 2024."""
    import pyarrow

    schema = batch.schema.append(pyarrow.field(name, values.type))
    return pyarrow.RecordBatch.from_arrays([*batch.columns, values], schema=schema)


class WithKeys:
    """A :class:`Layout`: the file's own columns, and ``keys`` that the file lacks."""

    def __init__(self, schema: Any, keys: Mapping[str, Any]) -> None:
        self._known = schema.names
        self.keys = {key: value for key, value in keys.items() if key not in self._known}
        self.names = [*self._known, *self.keys]

    def in_file(self, wanted: Container[str] | None) -> list[str] | None:
        """See :class:`Layout`."""
        return None if wanted is None else [name for name in self._known if name in wanted]

    def rows(self, batch: Any) -> Any:
        """See :class:`Layout`."""
        import pyarrow

        for name, value in self.keys.items():
            batch = with_column(batch, name, pyarrow.repeat(value, batch.num_rows))
        return batch

    def is_plain(self, wanted: Container[str]) -> bool:
        """See :class:`Layout`."""
        del wanted
        return True


class Field(NamedTuple):
    """A column of a table; a file may have it under another name, with a narrower type, or lack it.

    ``type`` is pyarrow's type for a file that lacks the column: each row then has ``default``.
    ``cast`` is the type to convert to; None for no conversion.  ``aliases`` are its names in files
    without field ids.
    """

    id: int
    name: str
    type: Any
    default: Any = None
    cast: Any = None
    aliases: frozenset[str] = frozenset()


class Fields:
    """The columns of a table whose files are read by field id: :class:`Layouts`."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields

    def of(self, name: str, schema: Any) -> Layout:
        """See :class:`Layouts`; raises :class:`SourceError` if a column is ambiguous."""
        return ByField(name, schema, self._fields)


class ByField:
    """A :class:`Layout`: the fields of a table in one file.

    ``columns`` has the name of each field in the file, None for a field that the file lacks.
    """

    def __init__(self, name: str, schema: Any, fields: Sequence[Field]) -> None:
        find = _finder(name, schema)
        self._fields = [(field, find(field)) for field in fields]
        self._schema = schema
        self.columns: Mapping[int, str | None] = {field.id: found for field, found in self._fields}
        self.names = [field.name for field in fields]
        self.keys: Mapping[str, Any] = {}

    def in_file(self, wanted: Container[str] | None) -> list[str]:
        """See :class:`Layout`."""
        found = [
            column
            for field, column in self._fields
            if column is not None and (wanted is None or field.name in wanted)
        ]
        # Without a column there would be no rows to count, so any column is read.
        return found or self._schema.names[:1]

    def rows(self, batch: Any) -> Any:
        """See :class:`Layout`.  Fields that were not read are left out."""
        import pyarrow

        columns: dict[str, Any] = {}
        for field, column in self._fields:
            if column is None:
                columns[field.name] = _filled(field, batch.num_rows)
            elif column in batch.schema.names:
                read = batch.column(column)
                columns[field.name] = read if field.cast is None else read.cast(field.cast)
        return pyarrow.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def is_plain(self, wanted: Container[str]) -> bool:
        """See :class:`Layout`."""
        return all(
            column == field.name and field.cast in (None, self._schema.field(column).type)
            for field, column in self._fields
            if field.name in wanted
        )


def _filled(field: Field, rows: int) -> Any:
    import pyarrow

    if field.default is None:
        return pyarrow.nulls(rows, field.type)
    return pyarrow.repeat(pyarrow.scalar(field.default, field.type), rows)


def _finder(name: str, schema: Any) -> Callable[[Field], str | None]:
    """Return a function that finds a field's column in a file."""
    ids: list[Any] = [(field.metadata or {}).get(_FIELD_ID) for field in schema]
    if len(set(schema.names)) < len(schema.names) or len(set(filter(None, ids))) < sum(
        map(bool, ids)
    ):
        raise _unclear(name, "two columns have the same name or field id")
    if all(ids):
        by_id = {int(each): column for each, column in zip(ids, schema.names, strict=True)}
        return lambda field: by_id.get(field.id)
    if any(ids):
        raise _unclear(name, "some of its columns have a field id, and others don't")
    return lambda field: _named(name, schema, field)


def _named(name: str, schema: Any, field: Field) -> str | None:
    found = [column for column in schema.names if column in field.aliases]
    if len(found) > 1:
        raise _unclear(name, f"{found[0]!r} and {found[1]!r} may both be {field.name!r}")
    return found[0] if found else None


def _unclear(name: str, why: str) -> SourceError:
    return SourceError(
        f"{name}: {why}, so it is not clear which column is which.",
        remedy="Have the table's files written again (in Spark: rewrite_data_files).",
    )
