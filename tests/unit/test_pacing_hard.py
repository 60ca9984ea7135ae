"""Permits that PostgreSQL holds, against a server that knows advisory locks and transactions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flowctl.errors import ConfigError, RetryLater
from flowctl.pacing.hard import HardPermits, hard_permits
from flowctl.pacing.target_settings import Limits

IDLE, OPEN, FAILED, GONE = 0, 2, 3, 4


class Server:
    """Who holds which advisory lock."""

    def __init__(self) -> None:
        self.locks: dict[tuple[int, int], Connection] = {}

    def connect(self, *, autocommit: bool = False) -> Connection:
        return Connection(self, autocommit)


class Connection:
    """As psycopg's: without autocommit each statement opens a transaction."""

    def __init__(self, server: Server, autocommit: bool) -> None:
        self.server = server
        self.autocommit = autocommit
        self.info = SimpleNamespace(transaction_status=IDLE)
        self.said: list[str] = []

    def cursor(self) -> Connection:
        return self

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, statement: str, values: tuple[int, ...]) -> None:
        assert self.info.transaction_status not in (FAILED, GONE), "it takes no statement"
        assert statement.count("%s") == len(values)
        locks = self.server.locks
        key = values[0] if "unlock" in statement else values[3]
        assert -(1 << 31) <= key < 1 << 31, "PostgreSQL's keys are signed"
        if "unlock" in statement:
            place = values[1]
            self._row: Any = (locks.pop((key, place)) is self,)
        else:
            first, most, last, _, again, most_again = values
            assert (first, most) == (again, most_again)
            order = [(first + place) % most for place in range(last + 1)]
            free = [place for place in order if (key, place) not in locks]
            self._row = (free[0],) if free else None
            if free:
                locks[key, free[0]] = self
        if not self.autocommit:
            self.info.transaction_status = OPEN

    def fetchone(self) -> Any:
        return self._row

    def commit(self) -> None:
        self.said.append("commit")
        self.info.transaction_status = IDLE

    def rollback(self) -> None:
        self.said.append("rollback")
        self.info.transaction_status = IDLE


def test_there_are_never_more_than_that_many_places_and_each_is_used_again() -> None:
    server, permits = Server(), HardPermits("t", 2)
    inside: list[int] = []

    def call(connection: Connection, deeper: int) -> int:
        inside.append(len(server.locks))
        if deeper:
            permits.run(call, server.connect(), deeper - 1)
        return deeper

    for _ in range(5):
        assert permits.run(call, server.connect(), 1) == 1
        with pytest.raises(RetryLater, match="all 2 places are taken"):
            permits.run(call, server.connect(), 2)
        assert server.locks == {}
    assert max(inside) == 2


def test_targets_have_places_of_their_own_the_same_in_each_process() -> None:
    server = Server()

    def call(connection: Connection, target: str) -> int:
        if target:
            HardPermits(target, 1).run(call, server.connect(), "")
        return len({key for key, _ in server.locks})

    for other in "bcdefgh":
        assert HardPermits("a", 1).run(call, server.connect(), other) == 1
    with pytest.raises(RetryLater):
        HardPermits("a", 1).run(call, server.connect(), "a")


@pytest.mark.parametrize(
    ("before", "autocommit", "said"),
    [(IDLE, False, ["commit", "commit"]), (IDLE, True, []), (OPEN, False, [])],
    ids=["no transaction", "autocommit", "the user's transaction"],
)
def test_no_transaction_is_left_open_and_none_of_the_users_is_ended(
    before: int, autocommit: bool, said: list[str]
) -> None:
    connection = Server().connect(autocommit=autocommit)
    connection.info.transaction_status = before
    HardPermits("t", 1).run(lambda it: None, connection)
    assert (connection.said, connection.info.transaction_status) == (said, before)


def test_after_a_statement_that_failed_the_place_is_given_back() -> None:
    server = Server()
    connection = server.connect()

    def fails(connection: Connection) -> None:
        connection.info.transaction_status = FAILED
        raise ValueError("syntax error")

    with pytest.raises(ValueError, match="syntax"):
        HardPermits("t", 1).run(fails, connection)
    assert server.locks == {}
    assert "rollback" in connection.said


def test_of_a_connection_that_is_gone_nothing_is_asked() -> None:
    connection = Server().connect()

    def dies(connection: Connection) -> None:
        connection.info.transaction_status = GONE
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        HardPermits("t", 1).run(dies, connection)


def test_what_is_no_connection_or_has_no_bound_is_named() -> None:
    for arguments in ((), (5,)):
        with pytest.raises(ConfigError, match="is not a connection"):
            HardPermits("t", 1).run(lambda *_: None, *arguments)
    with pytest.raises(ConfigError, match="never be exceeded"):
        hard_permits("t", None)
    assert hard_permits("t", Limits(in_flight_max=7)).most == 7
