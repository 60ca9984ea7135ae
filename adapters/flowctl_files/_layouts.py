"""How the columns of a file's rows come from the file: from directories' names, or by field id."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote

from flowctl.errors import SourceError

# -- Columns that stand in the names of directories: ``year=2026/month=11/part-0.parquet`` -----


# What Hive and Spark write where the value is null.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_INT = re.compile(r"-?(0|[1-9][0-9]{0,17})")

Keys: TypeAlias = Mapping[str, str | None]


def keys_of(name: str, base: str) -> dict[str, str | None]:
    """Return the columns in the directories of ``name`` below ``base``, as text."""
    inner = name[len(base) :] if name.startswith(base) else ""
    keys: dict[str, str | None] = {}
    for folder in inner.split("/")[:-1]:
        key, equals, value = folder.partition("=")
        if equals and key:
            keys[unquote(key)] = None if value == _NULL else unquote(value)
    return keys


def int_columns(files: Iterable[Keys]) -> frozenset[str]:
    """Return the columns whose values are whole numbers in all files; the others are text.

    With leading zeros they are text, or ``month=01`` would not be found again.
    """
    names: set[str] = set()
    text: set[str] = set()
    for keys in files:
        names |= keys.keys()
        text |= {k for k, v in keys.items() if v is not None and not _INT.fullmatch(v)}
    return frozenset(names - text)


def typed(keys: Keys, ints: frozenset[str]) -> dict[str, Any]:
    """Return the values as scalars of pyarrow: ints where :func:`int_columns` says so."""
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

    ``names`` are all of them.  ``keys`` are those that are the same in each row, as scalars of
    pyarrow.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def keys(self) -> Mapping[str, Any]: ...

    def in_file(self, wanted: Container[str] | None) -> list[str] | None:
        """Return the file's columns that ``wanted`` columns of the rows are made of.

        None: all.
        """

    def rows(self, batch: Any) -> Any:
        """Return the rows of a ``pyarrow.RecordBatch`` that was read from the file."""

    def is_plain(self, wanted: Container[str]) -> bool:
        """Whether ``wanted`` columns stand in the file as the rows have them, or are keys."""


class Layouts(Protocol):
    """Layouts of the files of a source.  Picklable."""

    def of(self, name: str, schema: Any) -> Layout:
        """Return the layout of a file whose columns are ``schema``."""


class Directories:
    """Columns as they are in the file, and those in the names of its directories.

    ``bases`` says of each file in which directory it was found, ``ints`` which columns of the
    directories' names are numbers.
    """

    def __init__(self, bases: Mapping[str, str], ints: frozenset[str]) -> None:
        # By directory: there are few, and the reader travels.
        self._bases = (*sorted(set(bases.values()), key=len, reverse=True), "")
        self._ints = ints

    def of(self, name: str, schema: Any) -> Layout:
        """See :class:`Layouts`.  A column that is in the file too is taken from there."""
        base = next(each for each in self._bases if name.startswith(each))
        return WithKeys(schema, typed(keys_of(name, base), self._ints))


def with_column(batch: Any, name: str, values: Any) -> Any:
    """Return the RecordBatch ``batch`` with one column more; its ``append_column`` is of 2024."""
    import pyarrow

    schema = batch.schema.append(pyarrow.field(name, values.type))
    return pyarrow.RecordBatch.from_arrays([*batch.columns, values], schema=schema)


class WithKeys:
    """A :class:`Layout`: the file's own columns, and ``keys`` that it doesn't have."""

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
    """A column of a table, which files may have under other names, in a narrower type, or not.

    ``type`` is of pyarrow, for values that are not in the file: all of them are ``default`` there.
    ``cast`` None: as it is in the file.  ``aliases`` are its names in files without field ids.
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
        """See :class:`Layouts`; :class:`SourceError` if columns can't be told apart."""
        return ByField(name, schema, self._fields)


class ByField:
    """A :class:`Layout`: the fields of a table in one file.

    ``columns`` says under which name the file has each field, None: it lacks it.
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
        # With no column there would be no rows: then any serves to count them.
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
    """Return what finds a field's column in a file."""
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
