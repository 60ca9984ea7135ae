"""Window policies, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from flowctl.core.settings import PolicyName, WindowSettings
from flowctl.core.window.aiad import AiadWindow
from flowctl.core.window.baselines import (
    AimdWindow,
    ArcWindow,
    FixedWindow,
    Gradient2Window,
    VegasWindow,
)
from flowctl.core.window.just_full import JustFullWindow
from flowctl.core.window.policy import AckSample, WindowPolicy
from flowctl.core.window.rtt_only import RttOnlyWindow

__all__ = ["AckSample", "WindowPolicy", "make_policy"]

_POLICIES: Final[Mapping[PolicyName, Callable[..., WindowPolicy]]] = {
    "aiad": AiadWindow,
    "aimd": AimdWindow,
    "arc": ArcWindow,
    "fixed": FixedWindow,
    "gradient2": Gradient2Window,
    "just_full": JustFullWindow,
    "rtt_only": RttOnlyWindow,
    "vegas": VegasWindow,
}


def make_policy(settings: WindowSettings, *, learned: float | None = None) -> WindowPolicy:
    """Return a new policy for one bolt; ``learned`` is its window before it went, in this run."""
    return _POLICIES[settings.policy](settings, learned=learned)
