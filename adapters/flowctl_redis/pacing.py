"""Where the workers of a paced target meet: one hash in Redis, one script.

See ``lua/pace.lua`` for what is stored.  Times are the server's.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from flowctl.core.pacing.leases import RATE_MOST, Claim, Reply, Sums, Table, WorkerReport
from flowctl.errors import InfrastructureError
from flowctl_redis.clients import check_options, new_client
from flowctl_redis.faults import expected, translate
from flowctl_redis.names import to_bytes, to_text
from flowctl_redis.url import checked, is_tls, shown

# An exchange takes 1 ms; workers go on with what they have while it hangs.
_TIMEOUT_S = 1.0
# Before the table of a leader: see the end of pace.lua.
_HEAD, _LEADER_HEAD = 8, 12


class RedisExchange:
    """One worker's connection.  Nothing is connected before the first exchange.

    ``client``: a redis-py client of your own in place of ``url``; it must not decode responses.
    Used by one thread.  After an error it stays usable: the next exchange reconnects.
    """

    def __init__(
        self, url: str, target: str, *, prefix: str = "flowctl", client: Any = None
    ) -> None:
        expected()  # says what is missing now, not in a thread
        self._url = checked(url)
        check_options(url)
        self._key = target_key(prefix, target)
        self._client: Any = client

    @property
    def address(self) -> str:
        """Where the workers meet, for people; without secrets."""
        return shown(self._url)

    def exchange(self, report: WorkerReport) -> Reply:
        """Report, and get the lease.

        Raises :class:`flowctl.errors.InfrastructureError` if Redis can't be reached or refuses.
        """
        fault: InfrastructureError
        try:
            reply = self._connected().eval(_source(), 1, self._key, *_arguments(report))
            return _reply_of(reply)
        except expected() as error:
            fault = translate(
                error,
                address=self.address,
                key=self._key,
                timeout_s=_TIMEOUT_S,
                ours=False,
                tls=is_tls(self._url),
            )
        self.close()
        raise fault

    def workers(self) -> int:
        """How many workers have a lease, or had one that nobody has taken back yet."""
        names = self._connected().hkeys(self._key)
        return sum(name.startswith(b"w:") for name in names)

    def close(self) -> None:
        """Give the connection up; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        if self._client is None:
            self._client = new_client(
                self._url, timeout_s=_TIMEOUT_S, single_connection_client=True
            )
        return self._client


def target_key(prefix: str, target: str) -> bytes:
    """The key of a target; the braces keep it on one node, and apart from jobs."""
    return to_bytes(f"{prefix}:target:{{{target}}}")


@cache
def _source() -> str:
    folder = resources.files("flowctl_redis") / "lua"
    return (folder / "pace.lua").read_text(encoding="utf-8")


def _arguments(report: WorkerReport) -> list[bytes | str | int | float]:
    claim, decision = report.claim, report.decision
    rest = "|".join(
        (
            str(claim.want),
            f"{claim.want_rate:.9g}",
            f"{claim.weight:.9g}",
            str(claim.in_flight),
            "1" if claim.is_held else "0",
            str(claim.resting),
            claim.job,
        )
    )
    arguments: list[bytes | str | int | float] = [
        claim.worker,
        to_bytes(claim.job),
        to_bytes(rest),
        claim.holds,
        f"{report.rate:.15g}",
        int(report.ttl_s * 1000),
        report.known_limit,
        "" if report.budget is None else f"{report.budget:.15g}",
        *(f"{value:.15g}" for value in report.done),
        "bye" if report.is_leaving else "stay",
    ]
    if decision is None:
        return [*arguments, "", ""]
    arguments += [decision.limit, decision.reason]
    for worker, (permits, rate) in decision.goals.items():
        arguments += [worker, permits, f"{rate:.15g}"]
    return arguments


def _reply_of(reply: list[bytes]) -> Reply:
    *numbers, reason = reply[:_HEAD]
    now_ms, limit, permits, rate, leads, workers, budget = (float(part) for part in numbers)
    return Reply(
        now_ms / 1000,
        int(limit),
        int(permits),
        rate,
        int(workers),
        budget,
        _table_of(reply) if leads else None,
        to_text(reason),
    )


def _table_of(reply: list[bytes]) -> Table:
    total, least, most, resets = reply[_HEAD:_LEADER_HEAD]
    claims, goals = [], {}
    for name, entry in zip(reply[_LEADER_HEAD::2], reply[_LEADER_HEAD + 1 :: 2], strict=True):
        worker = to_text(name)
        claim, goal = claim_of(worker, entry)
        claims.append(claim)
        goals[worker] = goal
    return Table(
        tuple(claims),
        goals,
        sums_of(total),
        int(least) if least else None,
        int(most) if most else None,
        int(resets or 0),
    )


def claim_of(worker: str, entry: bytes) -> tuple[Claim, tuple[int, float]]:
    """What is stored of a worker: its claim, and the permits and rate it was given."""
    _, holds, _, goal, rate_goal, want, want_rate, weight, in_flight, is_held, resting, job = (
        to_text(entry).split("|", 11)
    )
    claim = Claim(
        worker,
        job,
        float(weight),
        int(want),
        min(RATE_MOST, float(want_rate)),
        int(holds),
        int(in_flight),
        is_held == "1",
        int(resting),
    )
    return claim, (int(goal), float(rate_goal))


def sums_of(text: bytes) -> Sums:
    """What is stored of a job's sums, or of all."""
    if not text:
        return Sums()
    calls, cost, call_s, refused, failed, waited_s = (float(part) for part in text.split())
    return Sums(int(calls), cost, call_s, int(refused), int(failed), waited_s)
