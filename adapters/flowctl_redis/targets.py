"""The stored state of paced targets, for people: list, read, set, reset."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from math import inf
from typing import Any, TypeVar

from flowctl.core.pacing.figures import StoredTarget, StoredUse
from flowctl.core.pacing.leases import RATE_MOST, Claim, Reply, Sums, Table, WorkerReport
from flowctl.core.pacing.quotas import Grant
from flowctl.errors import CheckpointCorruptError, ConfigError, InfrastructureError
from flowctl_redis.clients import check_options, new_client
from flowctl_redis.names import to_bytes, to_text
from flowctl_redis.translated import expected, translate
from flowctl_redis.url import checked, is_tls, shown

# -- Where the workers of a paced target meet: one hash in Redis, one script -------------------
#
# See ``lua/pace.lua`` for what is stored. Times are the server's.


# Time-out of an exchange, which takes 1 ms; while it hangs, workers go on with their permits.
_EXCHANGE_TIMEOUT_S = 1.0
_EVER_S = 1e10  # when a quota without an end ends: in some 300 years
_NEVER_MS = 1e12  # 30 years
# Before the table of a leader: see the end of pace.lua.
_HEAD, _LEADER_HEAD = 10, 16


class RedisLink:
    """One connection of a process, for all targets that it shares there; used by one thread.

    Nothing is connected before the first exchange.  ``client``: a redis-py client of your own in
    place of ``url``; it must not decode responses.
    """

    def __init__(self, url: str, *, client: Any = None) -> None:
        expected()  # raises for a missing package here, not later in a thread
        self.url: str = checked(url)
        check_options(url)
        self._client: Any = client

    def connected(self) -> Any:
        """Return the client."""
        if self._client is None:
            self._client = new_client(self.url, timeout_s=_EXCHANGE_TIMEOUT_S)
        return self._client

    def close(self) -> None:
        """Close the connection; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


class RedisExchange:
    """What one worker exchanges about one target.  ``link``: the connection; None: its own.

    Used by one thread.  After an error it stays usable: the next exchange reconnects.
    """

    def __init__(
        self,
        url: str,
        target: str,
        *,
        prefix: str = "flowctl",
        client: Any = None,
        link: RedisLink | None = None,
    ) -> None:
        self._link = link or RedisLink(url, client=client)
        self._url = self._link.url
        self._key = target_key(prefix, target)

    @property
    def address(self) -> str:
        """The server's address for messages, without secrets."""
        return shown(self._url)

    def exchange(self, report: WorkerReport) -> Reply:
        """Send the report and return the lease.

        Raises :class:`flowctl.errors.InfrastructureError` if Redis can't be reached or refuses.
        """
        fault: InfrastructureError
        try:
            client = self._link.connected()
            reply = client.eval(_source(), 1, self._key, *_arguments(report))
            return _reply_of(reply)
        except expected() as error:
            fault = self._translated(error)
        self._link.close()
        raise fault

    def _translated(self, error: Exception) -> InfrastructureError:
        return translate(
            error,
            address=self.address,
            key=self._key,
            timeout_s=_EXCHANGE_TIMEOUT_S,
            tls=is_tls(self._url),
        )

    @classmethod
    def exchange_all(
        cls, asked: Sequence[tuple[RedisExchange, WorkerReport]]
    ) -> list[Reply | InfrastructureError]:
        """Exchange for several targets of one link in one round trip; return answers or errors."""
        first, report = asked[0]
        try:
            if len(asked) == 1:
                return [first.exchange(report)]
            pipe = first._link.connected().pipeline(transaction=False)
            pipe.eval(_source(), 1, first._key, *_arguments(report))  # the server then knows it
            for exchange, each in asked[1:]:
                pipe.evalsha(_digest(), 1, exchange._key, *_arguments(each))
            replies = pipe.execute(raise_on_error=False)
        except InfrastructureError as error:
            return [error] * len(asked)
        except expected() as error:
            fault = first._translated(error)
            first._link.close()
            return [fault] * len(asked)
        return [
            exchange._translated(reply) if isinstance(reply, Exception) else _reply_of(reply)
            for (exchange, _), reply in zip(asked, replies, strict=True)
        ]

    def workers(self) -> int:
        """The number of workers with a lease, including leases not taken back yet."""
        names = self._link.connected().hkeys(self._key)
        return sum(name.startswith(b"w:") for name in names)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._link.close()


def target_key(prefix: str, target: str) -> bytes:
    """Return a target's key; the braces keep its keys on one node, and apart from jobs."""
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
            f"{claim.told_rate:.9g}",
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
        to_bytes(_asked(report)),
    ]
    if decision is None:
        return [*arguments, "", "", ""]
    arguments += [decision.limit, decision.reason, f"{decision.rate:.15g}"]
    for worker, (permits, rate) in decision.goals.items():
        arguments += [worker, permits, f"{rate:.15g}"]
    return arguments


@cache
def _digest() -> str:
    return hashlib.sha1(_source().encode(), usedforsecurity=False).hexdigest()


def _asked(report: WorkerReport) -> str:
    """Return what a worker wants of the quotas: the number of calls, then a line for each quota."""
    if not report.wishes:
        return ""
    lines = [str(report.calls)]
    for quota, first, mean, change, begin_s, end_s in report.wishes:
        at_once, rate = quota.pace(report.hold_s)
        numbers = (
            quota.amount, at_once, rate / 1000 if quota.is_spread else 0, 1000 * begin_s,
            1000 * min(end_s, _EVER_S), first, mean, change,
        )  # fmt: skip
        lines.append("|".join([*(f"{number:.15g}" for number in numbers), quota.key]))
    return "\n".join(lines)


def _grants_of(text: bytes) -> tuple[Grant, ...]:
    found = (map(float, line.split("|")) for line in to_text(text).split())
    return tuple(
        Grant(amount, left, inf if reset_ms > _NEVER_MS else reset_ms / 1000)
        for amount, left, reset_ms in found
    )


def _reply_of(reply: list[bytes]) -> Reply:
    *numbers, reason, granted = reply[:_HEAD]
    now_ms, limit, permits, rate, leads, workers, budget, is_learned = map(float, numbers)
    return Reply(
        now_ms / 1000,
        int(limit),
        int(permits),
        rate,
        int(workers),
        budget,
        _table_of(reply) if leads else None,
        to_text(reason),
        is_learned > 0,
        _grants_of(granted),
    )


def _table_of(reply: list[bytes]) -> Table:
    total, least, most, resets, budget, rate = reply[_HEAD:_LEADER_HEAD]
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
        float(budget),
        float(rate),
    )


def claim_of(worker: str, entry: bytes) -> tuple[Claim, tuple[int, float]]:
    """Return a worker's stored claim, and the permits and the rate that it was given."""
    _, holds, _, goal, rate_goal, *rest = to_text(entry).split("|", 12)
    want, want_rate, weight, in_flight, is_held, resting, told_rate, job = rest
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
        float(told_rate),
    )
    return claim, (int(goal), float(rate_goal))


def sums_of(text: bytes) -> Sums:
    """Return the stored sums of a job, or of all jobs."""
    if not text:
        return Sums()
    calls, cost, call_s, refused, failed, waited_s = (float(part) for part in text.split())
    return Sums(int(calls), cost, call_s, int(refused), int(failed), waited_s)


# -- What is stored of paced targets, for people -----------------------------------------------


_T = TypeVar("_T")
_TIMEOUT_S = 5.0  # for calls that a person waits for
_PARTS_FOR_S = 86_400  # a day, as of a run: see flowctl_redis/store.py
_SCAN_COUNT = 1000  # keys per round trip: less than a millisecond of the server's time
# Fields with what was learned about a target; a reset keeps sums by job and values set by hand.
_LEARNED = ("limit", "rate", "reason", "total", "mark", "mark_at", "mark_before", "mark_before_at")


class RedisTargets:
    """Reads and writes the shared state of paced targets.  Thread-safe, as redis-py is.

    All calls raise :class:`flowctl.errors.InfrastructureError` if Redis can't be reached.
    """

    def __init__(self, url: str, *, prefix: str = "flowctl", client: Any = None) -> None:
        self._url = checked(url)
        self._prefix = prefix
        self._client = client

    def names(self) -> list[str]:
        """Return the targets that were paced in the last 30 days.  Walks all keys."""
        return self._named(f"{self._prefix}:target:{{")

    def _named(self, begin: str) -> list[str]:
        pattern = to_bytes(begin + "*}")
        keys = self._call(
            lambda client: list(client.scan_iter(match=pattern, count=_SCAN_COUNT, _type="HASH"))
        )
        return sorted(to_text(key)[len(begin) : -1] for key in keys)

    def read(self, target: str) -> StoredTarget:
        """Return a target's state; :class:`ConfigError` if the target is unknown.

        A limit of 0 means that the target was reset and not paced since.
        """
        key = target_key(self._prefix, target)
        fields = self._call(lambda client: client.hgetall(key))
        if not fields:
            self._refuse(target)
        now_s = self._call(lambda client: float(client.time()[0]))
        try:
            return _stored(target, fields, now_s)
        except (ValueError, OverflowError) as error:
            raise CheckpointCorruptError(
                f"what is stored for target {target!r} in {to_text(key)} is damaged: {error}.",
                remedy=f"Delete it: redis-cli DEL '{to_text(key)}'; it is learned again.",
            ) from error

    def read_all(self) -> tuple[list[StoredTarget], list[CheckpointCorruptError]]:
        """Return all targets that can be read, and what is wrong with the others."""
        found, damaged = [], []
        for name in self.names():
            try:
                found.append(self.read(name))
            except CheckpointCorruptError as error:
                damaged.append(error)
            except ConfigError:  # removed since it was listed
                continue
        return found, damaged

    def show_part(self, job: str, name: str, part: bytes) -> None:
        """Keep what a partition of a write shows, in place of what it showed before; for a day."""
        key = self._parts_key(job)

        def keep(client: Any) -> None:
            pipe = client.pipeline(transaction=False)
            pipe.hset(key, to_bytes(name), part)
            pipe.expire(key, _PARTS_FOR_S)
            pipe.execute()

        self._call(keep)

    def parts(self, job: str) -> Sequence[bytes]:
        """Return what the partitions of the writes of ``job`` show."""
        found: Sequence[bytes] = self._call(lambda client: client.hvals(self._parts_key(job)))
        return found

    def jobs_with_parts(self) -> list[str]:
        """Return the jobs whose partitions show anything.  Walks all keys."""
        begin = f"{self._prefix}:parts:{{"
        return self._named(begin)

    def _parts_key(self, job: str) -> bytes:
        return to_bytes(f"{self._prefix}:parts:{{{job}}}")

    def set(self, target: str, values: Mapping[str, float | None]) -> None:
        """Set ``min``, ``max`` or ``budget`` by hand; None restores the program's value."""
        self._check(target)
        key = target_key(self._prefix, target)
        gone = [f"set:{name}" for name, value in values.items() if value is None]
        new = {f"set:{n}": f"{value:.15g}" for n, value in values.items() if value is not None}
        if gone:
            self._call(lambda client: client.hdel(key, *gone))
        if new:
            self._call(lambda client: client.hset(key, mapping=new))

    def reset(self, target: str) -> None:
        """Forget what was learned: workers begin again with a few concurrent calls."""
        self._check(target)
        key = target_key(self._prefix, target)
        self._call(lambda client: client.hincrby(key, "resets", 1))  # the leader sees the reset
        if not self._leads_anybody(key):  # else the next leader begins with these
            self._call(lambda client: client.hdel(key, *_LEARNED))

    def _leads_anybody(self, key: bytes) -> bool:
        until_ms = self._call(lambda client: client.hget(key, "leader_until"))
        return float(until_ms or 0) > 1000 * self._call(lambda client: float(client.time()[0]))

    def _check(self, target: str) -> None:
        key = target_key(self._prefix, target)
        if not self._call(lambda client: client.exists(key)):
            self._refuse(target)

    def _refuse(self, target: str) -> None:
        names = ", ".join(self.names()[:10])
        raise ConfigError(
            "TARGET",
            f"no program has paced {target!r} with this Redis.",
            remedy=f"Known: {names}." if names else "No target was paced with this Redis at all.",
        )

    def _call(self, operation: Callable[[Any], _T]) -> _T:
        fault: InfrastructureError
        try:
            if self._client is None:
                self._client = new_client(self._url, timeout_s=_TIMEOUT_S)
            return operation(self._client)
        except expected() as error:
            fault = translate(
                error,
                address=shown(self._url),
                key=None,
                timeout_s=_TIMEOUT_S,
                tls=is_tls(self._url),
            )
        raise fault


def _uses_of(fields: Mapping[bytes, bytes], now_ms: float) -> tuple[StoredUse, ...]:
    found = []
    for name, value in sorted(fields.items()):
        if not name.startswith(b"q:"):
            continue
        amount, begin_ms, till_ms, used, _ = map(float, value.split(b"|"))
        is_over = now_ms >= till_ms
        by_job = {}
        for field, entry in sorted(fields.items()):
            job, _, key = field[2:].partition(b"|")
            if field.startswith(b"u:") and key == name[2:] and not is_over:
                began_ms, of_job = map(float, entry.split(b"|"))
                if began_ms == begin_ms:
                    by_job[to_text(job)] = of_job
        found.append(
            StoredUse(
                quota=to_text(name[2:]),
                amount=amount,
                used=0.0 if is_over else used,
                reset_s=None if till_ms >= 1000 * _EVER_S else max(0.0, till_ms - now_ms) / 1000,
                by_job=by_job,
            )
        )
    return tuple(found)


def _stored(target: str, fields: Mapping[bytes, bytes], now_s: float) -> StoredTarget:
    def number(name: bytes) -> float:
        return float(fields.get(name) or 0)

    total, seen_ms = sums_of(fields.get(b"total", b"")), number(b"seen")
    mark = b"mark_before" if number(b"mark_before_at") else b"mark"
    claims = [
        claim_of(to_text(name[2:]), entry)[0]
        for name, entry in fields.items()
        if name.startswith(b"w:")
    ]
    budget = fields.get(b"set:budget") or fields.get(b"budget")
    rate = number(b"rate")
    return StoredTarget(
        target=target,
        limit=int(number(b"limit")),
        reason=to_text(fields.get(b"reason", b"start" if b"limit" in fields else b"reset")),
        budget=float(budget) if budget else None,
        rate=rate or None,
        quotas=_uses_of(fields, 1000 * now_s),
        leased=int(number(b"leased")),
        seen_s=max(0.0, now_s - seen_ms / 1000),
        recent=total.minus(sums_of(fields.get(mark, b""))),
        recent_s=max(0.0, (seen_ms - number(mark + b"_at")) / 1000),
        jobs={
            to_text(name[2:]): sums_of(value)
            for name, value in sorted(fields.items())
            if name.startswith(b"c:")
        },
        claims=tuple(claims),
        operator={
            to_text(name[4:]): float(value)
            for name, value in fields.items()
            if name.startswith(b"set:")
        },
    )
