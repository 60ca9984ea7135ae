"""Calls with too many bytes: bounded by the user, or by what the target has refused."""

from __future__ import annotations

import httpx
import pytest

from flowctl.bolts.batch import Batch
from flowctl.delivery.delivery import Delivery
from flowctl.delivery.plan import Plan, Where
from flowctl.failure.classify import is_too_large
from tests.delivery_parts import Clock, PatientPacer
from tests.listener_parts import Letters

ROW = "x" * 1_000
ROWS = 5_000


class Server:
    """Takes ``most`` bytes in a call, else answers 413."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._most, self._clock = most, clock
        self.taken: list[int] = []
        self.sent: list[int] = []
        self.refused = 0

    def __call__(self, batch: Batch) -> None:
        size = sum(len(text) for _, text in (record.value for record in batch))
        self.sent.append(size)
        self._clock.sleep(0.001)
        if size > self._most:
            self.refused += 1
            request = httpx.Request("POST", "http://localhost/bulk")
            answer = httpx.Response(413, request=request)
            raise httpx.HTTPStatusError("too large", request=request, response=answer)
        self.taken += [number for number, _ in (record.value for record in batch)]


def deliver(most: int, rows: list[tuple[int, str]], **plan: object) -> tuple[Server, Letters]:
    clock, letters = Clock(), Letters()
    server = Server(most, clock)
    made = Plan(process=server, dead_letter=letters, **plan)  # type: ignore[arg-type]
    pacer = PatientPacer(clock)
    Delivery(made, Where("j", "p"), pacer, clock=clock, sleep=clock.sleep, chance=None).run(rows)
    return server, letters


@pytest.mark.parametrize("most", [30_000, 100_000, 333_000])
def test_what_was_too_large_once_is_not_sent_again_and_again(most: int) -> None:
    server, letters = deliver(most, [(number, ROW) for number in range(ROWS)])
    assert sorted(server.taken) == list(range(ROWS))
    assert not letters.kept
    assert server.refused <= 6, "halved until one is taken"
    assert sum(server.sent) <= 1.25 * ROWS * len(ROW)
    assert len(server.sent) <= 2.5 * ROWS * len(ROW) / most + 10, "a call is half of it at least"


def test_with_a_bound_nothing_is_refused() -> None:
    rows = [(number, ROW) for number in range(ROWS)]
    server, letters = deliver(100_000, rows, bytes_max=100_000)
    assert (server.refused, letters.kept) == (0, [])
    assert sorted(server.taken) == list(range(ROWS))


def test_a_row_that_is_too_large_alone_is_a_letter_and_the_others_go_as_before() -> None:
    rows = [(number, ROW) for number in range(ROWS)]
    rows[2_000] = (2_000, "x" * 2_000_000)
    server, letters = deliver(1_000_000, rows)
    assert [positions for _, _, positions, _, _ in letters.kept] == [[2_000]]
    assert sorted(server.taken) == [n for n in range(ROWS) if n != 2_000]
    assert server.refused <= 12


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("(1153, \"Got a packet bigger than 'max_allowed_packet' bytes\")", True),
        ("request entity too large", True),
        ("Payload Too Large", True),
        ("Message size too large", True),
        ("value too large for column SALES.NAME", False),
        ("number too large", False),
    ],
)
def test_a_call_that_is_too_large_is_told_from_a_value_that_is(text: str, is_so: bool) -> None:
    assert is_too_large(RuntimeError(text)) is is_so
