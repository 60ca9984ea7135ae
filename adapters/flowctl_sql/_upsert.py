"""What a sink does with a row whose key the table has already."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from flowctl.errors import ConfigError, JobError
from flowctl_sql._dialect import MYSQL_NAMES, Dialect, checked_columns

Mode: TypeAlias = Literal["insert", "upsert", "ignore"]

_MODES: Final = get_args(Mode)
# SQLAlchemy's names of the dialects whose INSERT takes such a clause.
_KNOWN: Final = ("sqlite", "postgresql", *MYSQL_NAMES)
# The unique indexes of a table, a line for each of their columns.
_INDEXES: Final = (
    "SELECT index_name, column_name FROM information_schema.statistics"
    " WHERE table_schema = {schema} AND table_name = ? AND non_unique = 0"
    " ORDER BY index_name, seq_in_index"
)


class OnConflict(msgspec.Struct, frozen=True):
    """The row that is there is updated, or kept.  Immutable.

    ``key``: the columns of a unique index, by which a row is found again; empty (only with
    "ignore"): of any.  ``update``: the columns that are updated; None: all that are not of the key.
    """

    mode: Mode
    key: tuple[str, ...]
    update: tuple[str, ...] | None

    def clause(self, dialect: Dialect, columns: Sequence[str]) -> str:
        """Return what follows ``INSERT … VALUES (…)`` for rows with ``columns``."""
        quoted = [dialect.quote(column) for column in self.updated(columns, dialect)]
        if dialect.name in MYSQL_NAMES:
            # VALUES(): also MariaDB knows it.  A column that stays as it is: IGNORE would also
            # ignore that a value does not fit.
            kept = dialect.quote((self.key or columns)[0])
            sets = [f"{name} = VALUES({name})" for name in quoted] or [f"{kept} = {kept}"]
            return f" ON DUPLICATE KEY UPDATE {', '.join(sets)}"
        target = f" ({', '.join(map(dialect.quote, self.key))})" if self.key else ""
        sets = [f"{name} = excluded.{name}" for name in quoted]
        does = f"UPDATE SET {', '.join(sets)}" if sets else "NOTHING"
        return f" ON CONFLICT{target} DO {does}"

    def updated(self, columns: Sequence[str], dialect: Dialect) -> list[str]:
        """Return which of a row's ``columns`` it updates; none: the row that is there stays."""
        if self.mode == "ignore":
            return []
        wanted = columns if self.update is None else self.update
        if dialect.name != "postgresql":  # to the others "Price" is the column price, too
            lower = _lower(wanted)
            return [each for each in columns if each.lower() in lower and each not in self.key]
        return [column for column in columns if column in wanted and column not in self.key]

    def check_table(self, cursor: Any, dialect: Dialect, table: str) -> list[Set[str]]:
        """Raise :class:`ConfigError` if the database can't do it; return its unique indexes.

        Only MySQL and MariaDB have to be asked for them, see :meth:`check_others`.
        """
        if dialect.name not in _KNOWN:
            raise ConfigError(
                "mode",
                f"{self.mode!r} is not known for {dialect.name}.",
                remedy="Insert into a staging table, and merge from there.",
            )
        if dialect.name not in MYSQL_NAMES:
            return []
        cursor.execute(*dialect.about_table(_INDEXES, table))
        indexes: dict[str, set[str]] = {}
        for index, column in cursor.fetchall():
            indexes.setdefault(str(index), set()).add(str(column).lower())
        if self.key and _lower(self.key) not in indexes.values():
            raise ConfigError(
                "key",
                f"{table!r} has no unique index on {', '.join(self.key)}.",
                remedy="Create one, or name the columns of one that there is.",
            )
        return list(indexes.values())

    def check_others(self, columns: Sequence[str], indexes: Sequence[Set[str]]) -> None:
        """Raise :class:`JobError` for rows that MySQL would find again by another index as well.

        It has no way to say which one is meant, and would update whatever row it finds.
        """
        key, given = _lower(self.key), _lower(columns)
        for other in indexes:
            if self.key and other != key and other <= given:
                raise JobError(
                    f"{', '.join(sorted(other))} is unique as well, and the database would also"
                    f" find rows by it, not only by {', '.join(self.key)}",
                    remedy="Drop that index, or leave one of its columns out of the rows.",
                )


def on_conflict(mode: str, key: Sequence[str], update: Sequence[str] | None) -> OnConflict | None:
    """Return what the arguments of a sink say; None: a row that is there is an error.

    Raises :class:`ConfigError` that names the argument.
    """
    if mode not in _MODES:
        raise ConfigError("mode", f"{mode!r} is unknown.", remedy=f"Give {' or '.join(_MODES)}.")
    if mode == "insert":
        _refuse("key", key, "insert")
        _refuse("update", update, "insert")
        return None
    if mode == "ignore":
        _refuse("update", update, "ignore")
    elif not key:
        raise ConfigError(
            "key",
            "is missing: by which columns is a row found again?",
            remedy="Name those of the primary key or of a unique index: key=['id'].",
        )
    names = checked_columns(key, "key") if key else ()
    updated = None if update is None else checked_columns(update, "update")
    if both := [column for column in updated or () if column in names]:
        raise ConfigError(
            "update", f"{both[0]!r} is of the key.", remedy="Name only columns that may change."
        )
    return OnConflict("upsert" if mode == "upsert" else "ignore", names, updated)


def _refuse(argument: str, given: object, mode: str) -> None:
    if given:
        raise ConfigError(
            argument, f"is not for mode={mode!r}.", remedy="Give mode='upsert', or leave it out."
        )


def _lower(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}
