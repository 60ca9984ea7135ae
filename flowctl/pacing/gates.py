"""The gates of this process, by target: state is per process, whoever was shipped what."""

from __future__ import annotations

import os
import secrets
import threading
from functools import cache

from flowctl.adapters import load_adapter
from flowctl.bolts import paced_targets
from flowctl.core.pacing.figures import TargetFigures
from flowctl.core.pacing.law import TargetLaw
from flowctl.errors import ConfigError
from flowctl.pacing.client import LeaseSource
from flowctl.pacing.gate import Gate, Known
from flowctl.pacing.local import TICK_S, LocalSource
from flowctl.pacing.settings import PaceSettings

_Key = tuple[str, str | None, str]

_lock = threading.Lock()
_gates: dict[_Key, tuple[PaceSettings, Gate]] = {}


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
                found = _gates[key] = settings, _new_gate(settings)
    if found[0] is not settings and found[0] != settings:
        raise ConfigError(
            _other_field(settings, found[0]),
            f"this process already paces {settings.target!r} with another value.",
            remedy="Give all calls of a target the same, or the target another name.",
        )
    return found[1]


def _new_gate(settings: PaceSettings) -> Gate:
    gate = Gate()
    if settings.redis is None:
        law = TargetLaw(settings.limits.bounds, leave=settings.leave, tick_s=TICK_S)
        gate.source = LocalSource(gate, law, rate=settings.rate)
        return gate
    adapter = load_adapter("flowctl_redis.pacing", "redis")
    source = LeaseSource(gate, settings, adapter.RedisExchange(settings.redis, settings.target))
    gate.source = source
    source.start()
    return gate


def _other_field(settings: PaceSettings, known: PaceSettings) -> str:
    fields = PaceSettings.__struct_fields__
    return next(name for name in fields if getattr(settings, name) != getattr(known, name))


def figures() -> list[TargetFigures]:
    """Return what this process knows of the targets that it calls."""
    with _lock:
        gates = list(_gates.values())
    return [_figures(settings, gate) for settings, gate in gates]


def _figures(settings: PaceSettings, gate: Gate) -> TargetFigures:
    with gate.lock:
        sums = gate.counters.sums
        known = gate.source.known() if gate.source is not None else Known(gate.permits, "", False)
    return TargetFigures(
        process=_process(),
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
    """A name of this process that no other has, on no host."""
    return secrets.token_hex(8)


def close_gates() -> None:
    """End the threads of all gates of this process; nobody may be calling their targets."""
    with _lock:
        for _, gate in _gates.values():
            if isinstance(gate.source, LeaseSource):
                gate.source.stop()
        _gates.clear()


def _forget() -> None:
    """After a fork: permits and threads are the parent's, locks may be held by nobody."""
    global _lock
    _lock = threading.Lock()
    _gates.clear()
    _process.cache_clear()


paced_targets.tell(figures)
os.register_at_fork(after_in_child=_forget)
