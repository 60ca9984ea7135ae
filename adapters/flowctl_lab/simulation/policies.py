"""Policies by name, each with the settings of a run.

A name is one of ``lab.window.policy``, with ``:N`` for ``lab.window.initial`` (``fixed:16``), or
one of the baselines below.  All but the product's own, ``just_full`` and ``rtt_only``, run as in
their own projects: a limiter per bolt, in turn, skipping full bolts, and a fixed time-out; without
signs of loss, the guard of shared sinks and copies at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from flowctl.config import Settings
from flowctl.core.settings import PolicyName, WindowSettings
from flowctl.errors import ConfigError
from flowctl_lab.simulation.scenario import Scenario
from flowctl_lab.simulation.workload import TUPLE_BYTES

DEFAULT: Final = WindowSettings().policy
AIAD_TUNED: Final = "aiad_tuned"
# Like plain Spark: each bolt's part is fixed from the start, however slow the bolt is.
STATIC: Final = "static"
# Like Storm: a fixed number of tuples per bolt in flight, over all bolts, given out blindly in
# turn.
STORM_MAX_PENDING: Final = "storm_max_pending"
_OWN: Final = ("just_full", "rtt_only")
# The fixed time-outs of the specification's baselines.
_BASELINE_RTO_S = 5.0
_STORM_RTO_S = 30.0
_STORM_PENDING = 4  # tuples per bolt: just enough to keep a local bolt busy
_UNBOUNDED = 1_000_000_000  # no window at all


def known() -> tuple[str, ...]:
    """Return all names that take no number."""
    return (*get_args(PolicyName), AIAD_TUNED, STATIC, STORM_MAX_PENDING)


def check(policy: str) -> None:
    """Raise :class:`ConfigError` if there is no such policy."""
    name = policy.partition(":")[0]
    if name not in known():
        names = ", ".join(known())
        raise ConfigError("policy", f"no policy {name!r}.", remedy=f"Known: {names}; fixed:N.")


def settings_of(
    policy: str, scenario: Scenario, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Return the settings of ``policy``; ``overrides`` are as for ``--set``."""
    return Settings().with_overrides({**changes_of(policy, scenario), **(overrides or {})})


def changes_of(policy: str, scenario: Scenario) -> dict[str, Any]:
    """Return what ``policy`` changes of a run's settings, as for ``--set``."""
    check(policy)
    name, _, number = policy.partition(":")
    changes: dict[str, Any] = {"lab.window.policy": name}
    if name == AIAD_TUNED:
        changes = _tuned(scenario)
    elif name in (STATIC, STORM_MAX_PENDING):
        pending = int(number or _STORM_PENDING) if name == STORM_MAX_PENDING else None
        changes = _blind(scenario, pending)
    elif number:
        changes["lab.window.initial"] = number
    if name not in _OWN:
        changes = {**_by_the_clock(_BASELINE_RTO_S), **changes}
    return changes


def _by_the_clock(rto_s: float) -> dict[str, Any]:
    return {
        "lab.timeout.rule": "clock",
        "lab.timeout.rto_first_s": rto_s,
        "lab.timeout.rto_min_s": rto_s,
        "lab.timeout.rto_max_s": rto_s,
        "hedge.enabled": False,
        "lab.dispatch.sink_guard": False,
    }


def _blind(scenario: Scenario, pending: int | None) -> dict[str, Any]:
    """Return settings without windows: each bolt in turn, whether busy or not."""
    return {
        **_by_the_clock(_STORM_RTO_S),
        "lab.window.policy": "fixed",
        "lab.window.initial": _UNBOUNDED,
        "lab.window.max": _UNBOUNDED,
        "lab.window.bytes_max": _UNBOUNDED,
        "lab.dispatch.bytes_max": _UNBOUNDED,
        "lab.dispatch.choice": "in_turn",
        "dispatch.in_flight_max": pending and pending * scenario.bolts,
    }


def _tuned(scenario: Scenario) -> dict[str, Any]:
    """Return the threshold of an oracle: twice the true mean round trip without load."""
    no_load_s = scenario.no_load_net_s + scenario.tuple_mean_s
    if scenario.sink:
        no_load_s += scenario.records_mean * scenario.sink.record_s
    return {
        "lab.window.policy": "aiad",
        "lab.window.threshold_s": 2 * no_load_s,
        "lab.window.initial": 4,
        "lab.window.max": 100,
    }


def settings_for(scenario: Scenario, settings: Settings) -> Settings:
    """Return ``settings`` with the tuple size that the scenario's data needs."""
    if scenario.is_as_shipped:
        return settings
    most = max(scenario.sizes)
    changes: dict[str, Any] = {"tuple.records_max": most}
    if len(scenario.sizes) > 1:  # the data decides the size, by its bytes
        changes["lab.tuple.bytes_max"] = TUPLE_BYTES
    # Twice the room for twelve bolts' tuples: a large tuple must not starve behind the buffer.
    room = 4 * scenario.bolts * scenario.slots * most
    if room > settings.buffer.records_max:
        changes["lab.buffer.records_max"] = room
    return settings.with_overrides(changes)
