"""Tell errors that mean "not now" from errors that mean "not these records".

Pure, except for reading /proc.

If a database is unavailable, full, locked or starting, the records are not at fault: the write is
refused (:class:`flowctl.errors.RetryLater`), and the same records will succeed later.
"""

from __future__ import annotations

import os
import re
import sqlite3

from flowctl.errors import RetryLater
from flowctl.failure.classify import meaning_alone, sqlite_code_of, sqlstate_of
from flowctl.failure.tables import (
    MYSQL_DRIVERS,
    POSTGRES_DRIVERS,
    SQLITE_BUSY,
    SQLITE_IOERR,
    SQLITE_LOCKED,
    SQLITE_READONLY,
)

LOCKED_STATE = "55P03"
_CANCELED_STATE = "57014"  # statement_timeout, or an administrator

# SQLSTATEs of faults in the statement itself.  Not all of class 42: "datatype mismatch" may be due
# to one row's value.
_STATEMENT_STATES = (
    "3F000",  # no such schema
    "42501",  # no right to write there
    "42601",  # syntax
    "42701",  # a column twice
    "42703",  # no such column
    "42809",  # not a table
    "42P01",  # no such table
    "428C9",  # a column that is always generated
    "42P10",  # no unique index on the key
)
# SQLite has one code for all of these errors, and also for errors of functions, which depend on the
# row.
_SQLITE_STATEMENT = re.compile(
    r"no such (table|column)|has no column named|syntax error|incomplete input|values for \d+ col"
    r"|has \d+ columns but|cannot (modify|insert into|UPSERT)|does not match any PRIMARY KEY",
    re.IGNORECASE,
)

_SQLITE_LOST = (SQLITE_IOERR, SQLITE_READONLY)
_MYSQL_DEADLOCK = 1213
_MYSQL_STATEMENT_NUMBERS = (
    1054,  # no such column
    1064,  # syntax
    1110,  # a column twice
    1136,  # as many values as columns are needed
    1142,  # no right to write there
    1143,  # no right to write this column
    1146,  # no such table
    1471,  # a view that takes no rows
    1906,  # a column that is always generated
    3105,  # the same, in MySQL
)
_MYSQL_CANCELED = (1317, 1969)  # by an administrator; by max_statement_time

_TLS = re.compile(r"\bSSL\b|certificate|sslmode", re.IGNORECASE)
_REASON_CHARS_MAX = 300  # one to three lines; drivers add hints and positions
_WAL_WRITE_LOCK = 120  # the byte of FILE-shm that is locked (sqlite.org/walformat.html, 2.3.1)


def is_locked(error: BaseException) -> bool:
    """Whether ``error`` means that another connection holds a lock."""
    if isinstance(error, sqlite3.OperationalError):
        return sqlite_code_of(error) in (SQLITE_BUSY, SQLITE_LOCKED)
    return sqlstate_of(error) == LOCKED_STATE


def is_deadlock(error: BaseException) -> bool:
    """Whether InnoDB rolled the transaction back because of a deadlock with another."""
    return _package(error) in MYSQL_DRIVERS and mysql_number(error) == _MYSQL_DEADLOCK


def is_canceled(error: BaseException) -> bool:
    """Whether the server cancelled the statement, because it took too long or on request."""
    if _package(error) in MYSQL_DRIVERS:
        return mysql_number(error) in _MYSQL_CANCELED
    return sqlstate_of(error) == _CANCELED_STATE


def is_refusal(error: BaseException, *, connected: bool = True) -> bool:
    """Whether the same records may succeed later; ``connected``: the connection still exists."""
    meaning = meaning_alone(error)
    if meaning is not None:
        return meaning.is_refusal
    if connected:  # it worked before: a file that can't be written is the disk's fault
        return isinstance(error, sqlite3.Error) and sqlite_code_of(error) in _SQLITE_LOST
    names = {cls.__name__ for cls in type(error).__mro__}
    return "InterfaceError" in names and _package(error) in POSTGRES_DRIVERS


def is_of_a_driver(error: BaseException) -> bool:
    """Whether a driver raised ``error``: by PEP 249 its base class is called ``Error``."""
    return any(cls.__name__ == "DatabaseError" for cls in type(error).__mro__)


def is_statement_fault(error: BaseException) -> bool:
    """Whether ``error`` is about the statement itself (an unknown column), not about a row."""
    if isinstance(error, sqlite3.OperationalError):
        return bool(_SQLITE_STATEMENT.search(str(error)))
    if _package(error) in MYSQL_DRIVERS:
        return mysql_number(error) in _MYSQL_STATEMENT_NUMBERS
    return sqlstate_of(error) in _STATEMENT_STATES


def reason_of(error: BaseException, label: str) -> str:
    """Return the error of the database, called ``label``, in one line."""
    text = " ".join(str(error).split())[:_REASON_CHARS_MAX]
    return f"{label} can't take it now: {text or type(error).__name__}"


def remedy_of(error: BaseException) -> str:
    """Return what to check if no connection could be opened and waiting won't help."""
    if _TLS.search(str(error)):
        return (
            "Check the options for TLS in the URL or connect= (PostgreSQL: sslmode, sslrootcert),"
            " and the server's certificate."
        )
    return "Check user, password, database and the rights in the URL or connect=."


def mysql_number(error: BaseException) -> int | None:
    """Return the number of a MySQL or MariaDB error."""
    number = getattr(error, "errno", None) or (error.args[0] if error.args else None)
    return number if isinstance(number, int) else None


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def sqlite_locked(path: str, waited_s: float) -> RetryLater:
    """Return the refusal for an SQLite file whose write lock could not be acquired."""
    pid = _sqlite_writer(path)
    who = {None: "another process holds it", os.getpid(): "another thread of this process holds it"}
    return RetryLater(
        f"the write lock of the SQLite file {path} could not be had for {waited_s:g} s: "
        f"{who.get(pid, f'process {pid} holds it')}"
    )


def _sqlite_writer(path: str) -> int | None:
    """Return the process that holds the write lock; None if it can't be determined."""
    try:
        inode = str(os.stat(f"{path}-shm").st_ino)
        with open("/proc/locks", encoding="ascii") as locks:
            lines = [line.split() for line in locks]
    except (OSError, ValueError):
        return None
    for fields in lines:  # "1: POSIX ADVISORY WRITE 4711 fd:01:131090 120 120"
        if len(fields) == 8 and fields[1] == "POSIX" and fields[3] == "WRITE":
            first, last = int(fields[6]), fields[7]
            has_it = first <= _WAL_WRITE_LOCK and (last == "EOF" or int(last) >= _WAL_WRITE_LOCK)
            if has_it and fields[5].rpartition(":")[2] == inode and int(fields[4]) > 0:
                return int(fields[4])
    return None
