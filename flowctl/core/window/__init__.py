"""Window policies, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flowctl.core.settings import PolicyName, WindowSettings
from flowctl.core.window.aiad import AiadWindow
from flowctl.core.window.fixed import FixedWindow
from flowctl.core.window.just_full import JustFullWindow
from flowctl.core.window.policy import AckSample, WindowPolicy
from flowctl.core.window.rtt_only import RttOnlyWindow

__all__ = ["POLICIES", "AckSample", "WindowPolicy", "make_policy"]

#: Our own; ``flowctl_lab.baselines`` adds those that they are compared with.
POLICIES: Final[dict[PolicyName, Callable[..., WindowPolicy]]] = {
    "aiad": AiadWindow,
    "fixed": FixedWindow,
    "just_full": JustFullWindow,
    "rtt_only": RttOnlyWindow,
}


def make_policy(settings: WindowSettings, *, learned: float | None = None) -> WindowPolicy:
    """Return a new policy for one bolt; ``learned`` is its window before it went, in this run."""
    return POLICIES[settings.policy](settings, learned=learned)
