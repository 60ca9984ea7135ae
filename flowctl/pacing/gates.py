"""The gates of this process, by target: each process has its own state, whatever was pickled."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import threading
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from flowctl.adapters import load_adapter
from flowctl.bolts import paced_targets
from flowctl.core.pacing.figures import TargetFigures
from flowctl.core.pacing.law import TargetLaw
from flowctl.core.pacing.quotas import Pots
from flowctl.errors import ConfigError
from flowctl.instrumentation.logging import get_logger
from flowctl.pacing.budgets import span_of
from flowctl.pacing.client import LeaseSource, Turns
from flowctl.pacing.gate import Gate
from flowctl.pacing.in_process import TICK_S, LocalSource
from flowctl.pacing.target_settings import PaceSettings

# How long the end of a process waits for the last exchange [s]: it takes 1 ms, or a second if it
# hangs.
_LEAVE_S: Final = 1.5
# A gate has some 10 kB.  Names without end (one for each row) must not fill the process.
_GATES_MAX: Final = 10_000
_Key = tuple[str, str | None, str]

_lock = threading.Lock()
_gates: dict[_Key, tuple[PaceSettings, Gate]] = {}
# By the URL of a Redis: the thread and the connection of this process.
_shared: dict[str, tuple[Turns, Any]] = {}


def gate_of(settings: PaceSettings) -> Gate:
    """Return this process' gate of the target, made at the first call.

    Raises :class:`ConfigError` if the process has one with other settings.
    """
    key = settings.target, settings.redis, settings.job
    found = _gates.get(key)
    if found is None:
        with _lock:
            found = _gates.get(key)
            if found is None:
                if len(_gates) >= _GATES_MAX:
                    _make_room(settings.target)
                found = _gates[key] = settings, _new_gate(settings)
    if found[0] is not settings and found[0] != settings:
        raise ConfigError(
            _other_field(settings, found[0]),
            f"this process already paces {settings.target!r} with another value.",
            remedy="Give all calls of a target the same, or the target another name.",
        )
    return found[1]


def renew_gate(settings: PaceSettings) -> None:
    """Forget this process' gate of the target if it has other settings and is not in use.

    A Spark worker lives longer than a job: the next job may give the target another weight.  Raises
    :class:`ConfigError` if the gate is in use.
    """
    key = settings.target, settings.redis, settings.job
    with _lock:
        found = _gates.get(key)
        if found is not None and found[0] != settings and found[1].is_idle:
            del _gates[key]
            _stop([found[1]])  # otherwise it would use the new gate's lease
    if key in _gates:
        gate_of(settings)


def _make_room(target: str) -> None:
    """Forget gates that nobody uses now, the first that were made; the lock must be held.

    What they have learned is in Redis, or is learned again.  But a quota that only this process
    counts would begin anew, so such a gate stays.
    """
    idle = [
        key
        for key, (settings, gate) in _gates.items()
        if (settings.redis is not None or not settings.quotas) and gate.is_idle
    ]
    if not idle:
        raise ConfigError(
            "target",
            f"{target!r} would be one more than {_GATES_MAX:,} targets of this process, each"
            " with quotas that only this process counts, or with calls under way.",
            remedy="Is the name another one for each row? Name what has a limit: a service, a"
            " tenant. Quotas are shared, and then forgotten here, with redis=.",
        )
    _stop(_gates.pop(key)[1] for key in idle[: _GATES_MAX // 10])


def _stop(gates: Iterable[Gate]) -> None:
    """Let gates report their last calls, and free their permits."""
    leases = [gate.source for gate in gates if isinstance(gate.source, LeaseSource)]
    for source in leases:
        source.stop()
    for source in leases:
        source.join(_LEAVE_S / len(leases))


def _new_gate(settings: PaceSettings) -> Gate:
    gate = Gate(target=settings.target, patience_s=settings.limits.give_up_after_s)
    if settings.redis is None:
        if settings.quotas:
            gate.pots = Pots(settings.quotas, span_of)
            _tell_alone(settings)
        law = TargetLaw(settings.limits.bounds, leave=settings.leave, tick_s=TICK_S)
        gate.source = LocalSource(gate, law, rate=settings.rate)
        return gate
    adapter = load_adapter("flowctl_redis.targets", "redis")
    shared = _shared.get(settings.redis)
    if shared is None:
        shared = _shared[settings.redis] = (
            Turns(adapter.RedisExchange.exchange_all),
            adapter.RedisLink(settings.redis),
        )
    turns, link = shared
    exchange = adapter.RedisExchange(settings.redis, settings.target, link=link)
    source = gate.source = LeaseSource(gate, settings, exchange)
    turns.add(source)
    pool = sys.modules.get("multiprocessing.util")
    if pool is not None:  # its processes do not run atexit handlers
        pool.Finalize(None, _leave, exitpriority=0)
    return gate


def _tell_alone(settings: PaceSettings) -> None:
    """Say that other processes don't know what this one uses."""
    get_logger().log(
        logging.WARNING,
        "quotas_per_process",
        target=settings.target,
        quotas=", ".join(quota.text for quota in settings.quotas),
        remedy="Each process may use all of them, and begins anew: redis= shares and keeps them.",
    )


def _other_field(settings: PaceSettings, known: PaceSettings) -> str:
    fields = PaceSettings.__struct_fields__
    return next(name for name in fields if getattr(settings, name) != getattr(known, name))


def figures() -> list[TargetFigures]:
    """Return what this process knows of the targets that it calls."""
    with _lock:  # also for the name: two bolts that ask at once would each make one
        gates, process = list(_gates.values()), _process()
    return [_figures(process, settings, gate) for settings, gate in gates]


def _figures(process: str, settings: PaceSettings, gate: Gate) -> TargetFigures:
    source = gate.source
    assert source is not None
    with gate.lock:
        sums = gate.counters.sums
        known = source.known()
    return TargetFigures(
        process=process,
        target=settings.target,
        job=settings.job,
        limit=known.limit,
        reason=known.reason,
        is_shared=known.is_shared,
        calls=sums.calls,
        call_s=sums.call_s,
        refused=sums.refused,
        waited_s=sums.waited_s,
    )


@cache
def _process() -> str:
    """Return a name for this process that no process on any host shares."""
    return secrets.token_hex(8)


def close_gates() -> None:
    """End the threads of all gates of this process; no caller may be using them."""
    with _lock:
        for _, gate in _gates.values():
            if isinstance(gate.source, LeaseSource):
                gate.source.stop()
        _gates.clear()
        _shared.clear()


def _leave() -> None:
    """Report the last calls and free the permits at once, as the process ends."""
    with _lock:
        gates = [gate for _, gate in _gates.values()]
    _stop(gates)


def _forget() -> None:
    """Forget all gates after a fork: permits and threads belong to the parent, and locks may be
    held for ever.
    """
    global _lock
    _lock = threading.Lock()
    _gates.clear()
    _shared.clear()
    _process.cache_clear()


atexit.register(_leave)
paced_targets.tell(figures)
os.register_at_fork(after_in_child=_forget)
