"""What responses tell of limits in their headers, and what a paced call makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flowctl import paced
from flowctl.failure.classify import told_by
from flowctl.failure.headers import Told, told_of
from flowctl.pacing.gate import Gate

NOW_S = 1_700_000_000.0
AT = "Tue, 14 Nov 2023 22:13:20 GMT"  # the same

FAMILIES: list[tuple[dict[str, str], list[Told]]] = [
    (
        {"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "58", "X-RateLimit-Reset": "30"},
        [Told("", 60, 58, 30)],
    ),
    (  # GitHub: a Unix time
        {"x-ratelimit-remaining": "10", "x-ratelimit-reset": str(int(NOW_S) + 90)},
        [Told("", None, 10, 90)],
    ),
    (  # OpenAI: several, with spans of time
        {
            "x-ratelimit-limit-requests": "600",
            "x-ratelimit-remaining-requests": "599",
            "x-ratelimit-reset-requests": "120ms",
            "x-ratelimit-limit-tokens": "90000",
            "x-ratelimit-remaining-tokens": "89000",
            "x-ratelimit-reset-tokens": "6m0s",
        },
        [Told("requests", 600, 599, 0.12), Told("tokens", 90_000, 89_000, 360)],
    ),
    (  # Anthropic: moments
        {
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "49",
            "anthropic-ratelimit-requests-reset": "2023-11-14T22:14:00Z",
            "anthropic-ratelimit-input-tokens-remaining": "40000",
            "anthropic-ratelimit-input-tokens-reset": "2023-11-14T22:13:30+00:00",
            "date": AT,
        },
        [Told("requests", 50, 49, 40), Told("input-tokens", None, 40_000, 10)],
    ),
    ({"RateLimit": '"default";r=50;t=30', "RateLimit-Policy": '"default";q=100;w=60'},
     [Told("", None, 50, 30)]),
    (
        {"x-ms-ratelimit-remaining-requests": "7", "x-ms-ratelimit-reset-requests": "5"},
        [Told("requests", None, 7, 5)],
    ),
    ({"x-ratelimit-remaining": "7"}, []),  # until when?
    ({"x-ratelimit-remaining": "many", "x-ratelimit-reset": "soon"}, []),
    ({"content-type": "text/plain"}, []),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "told"), FAMILIES)
def test_each_family_of_headers_tells_what_is_left_until_when(
    headers: dict[str, str], told: list[Told]
) -> None:
    assert list(told_of(headers, lambda: NOW_S)) == [
        pytest.approx(each) if not each.unit else each for each in told
    ] or [tuple(map(str, each)) for each in told_of(headers, lambda: NOW_S)] == [
        tuple(map(str, each)) for each in told
    ]


HEADERS = {"x-ratelimit-remaining": "30", "x-ratelimit-reset": "10"}


@pytest.mark.parametrize(
    "response",
    [
        SimpleNamespace(headers=HEADERS),  # httpx, requests, aiohttp, openai, anthropic
        {"ResponseMetadata": {"HTTPHeaders": HEADERS}},  # botocore
        SimpleNamespace(response=SimpleNamespace(headers=HEADERS)),  # what an exception carries
        HEADERS,
    ],
)
def test_the_response_of_any_client_is_read(response: Any) -> None:
    assert [each.remaining for each in told_by(response)] == [30]


@pytest.mark.parametrize("response", [None, 7, "text", object(), {}, {"ResponseMetadata": {}}])
def test_what_is_no_response_tells_nothing(response: Any) -> None:
    assert told_by(response) == ()


def told_gate(calls: int, cost: float) -> tuple[Gate, SimpleNamespace]:
    clock = SimpleNamespace(now_s=50.0)
    gate = Gate(clock=lambda: clock.now_s)
    gate.permits = calls
    for _ in range(calls):
        assert gate.try_enter(cost)
    for _ in range(calls):
        gate.leave_done(clock.now_s, cost)
    return gate, clock


def told_rate(gate: Gate) -> float:
    with gate.lock:
        return gate.take_sums().told_rate


def test_what_is_left_is_spread_until_the_reset_and_forgotten_then() -> None:
    gate, clock = told_gate(4, 1.0)
    gate.tell([Told("requests", 60, 30, 10.0)])
    assert told_rate(gate) == 3.0
    gate.tell([Told("requests", 60, 8, 4.0)])
    assert told_rate(gate) == 2.0
    clock.now_s += 4.0
    assert told_rate(gate) == 0.0


def test_of_several_limits_the_least_counts_and_tokens_only_where_calls_have_a_cost() -> None:
    limits = [Told("requests", None, 100, 10.0), Told("tokens", None, 4_000, 10.0)]
    plain, _ = told_gate(4, 1.0)
    plain.tell(limits)
    assert told_rate(plain) == 10.0, "cost is not in tokens"
    costly, _ = told_gate(4, 200.0)
    costly.tell(limits)
    assert told_rate(costly) == 400.0, "tokens a second: two calls"
    costly.tell([Told("requests", None, 10, 10.0)])
    assert told_rate(costly) == 200.0, "a call a second"


def test_where_nothing_is_left_a_call_asks_when_the_time_is_over() -> None:
    gate, _ = told_gate(4, 1.0)
    gate.tell([Told("", 60, 0, 10.0)])
    assert told_rate(gate) == 0.05


def test_a_call_tells_its_response_and_an_error_tells_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Told] = []
    monkeypatch.setattr(Gate, "tell", lambda self, told: seen.extend(told))

    class Refused(Exception):
        response = SimpleNamespace(status_code=429, headers={**HEADERS, "retry-after": "0"})

    with paced("told", limits=None) as call:
        call.tell(SimpleNamespace(headers=HEADERS))
        call.tell(SimpleNamespace(headers={}))
        call.failed(Refused())
    assert [each.reset_s for each in seen] == [10.0, 10.0]
    seen.clear()
    answers = iter([Refused(), None])

    def work() -> None:
        if (error := next(answers)) is not None:
            raise error

    with paced("told") as call:
        call.run(work)
    assert [each.remaining for each in seen] == [30]
