"""Policies by name: what the settings of a run are.

A name is one of ``window.policy``, with ``:N`` for ``window.initial`` (``fixed:16``); or one of
the baselines below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from flowctl.config import Settings
from flowctl.core.settings import PolicyName, WindowSettings
from flowctl.errors import ConfigError
from flowctl.simulation.scenario import Scenario
from flowctl.simulation.workload import TUPLE_BYTES

DEFAULT: Final = WindowSettings().policy
AIAD_TUNED: Final = "aiad_tuned"
# The baselines of the specification: a fixed time-out.
_BASELINE_RTO_S = 5.0


def known() -> tuple[str, ...]:
    """All names that take no number."""
    return (*get_args(PolicyName), AIAD_TUNED)


def check(policy: str) -> None:
    """Raise :class:`ConfigError` if there is no such policy."""
    name = policy.partition(":")[0]
    if name not in known():
        names = ", ".join(known())
        raise ConfigError("policy", f"no policy {name!r}.", remedy=f"Known: {names}; fixed:N.")


def settings_of(
    policy: str, scenario: Scenario, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """The settings that ``policy`` stands for; ``overrides`` as for ``--set``."""
    check(policy)
    name, _, number = policy.partition(":")
    changes: dict[str, Any] = {"window.policy": name}
    if name == AIAD_TUNED:
        changes = _tuned(scenario)
    if number:
        changes["window.initial"] = number
    return Settings().with_overrides({**changes, **(overrides or {})})


def _tuned(scenario: Scenario) -> dict[str, Any]:
    """An oracle's threshold, at twice the true mean round trip without load."""
    no_load_s = scenario.no_load_net_s + scenario.tuple_mean_s
    if scenario.sink:
        no_load_s += scenario.records_mean * scenario.sink.record_s
    return {
        "window.policy": "aiad",
        "window.threshold_s": 2 * no_load_s,
        "window.initial": 4,
        "window.max": 100,
        "timeout.rto_first_s": _BASELINE_RTO_S,
        "timeout.rto_min_s": _BASELINE_RTO_S,
        "timeout.rto_max_s": _BASELINE_RTO_S,
    }


def settings_for(scenario: Scenario, settings: Settings) -> Settings:
    """``settings`` with what the scenario's data needs: the size of its tuples."""
    most = max(scenario.sizes)
    changes: dict[str, Any] = {"tuple.records_max": most}
    if len(scenario.sizes) > 1:  # the data decides, by its bytes
        changes["tuple.bytes_max"] = TUPLE_BYTES
    # Room for twelve bolts' tuples, twice: a large tuple must not starve behind the buffer.
    room = 4 * scenario.bolts * scenario.slots * most
    if room > settings.buffer.records_max:
        changes["buffer.records_max"] = room
    return settings.with_overrides(changes)
