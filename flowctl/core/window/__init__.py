"""Window policies, by name."""

from __future__ import annotations

from flowctl.core.settings import WindowSettings
from flowctl.core.window.aiad import AiadWindow
from flowctl.core.window.fixed import FixedWindow
from flowctl.core.window.policy import AckSample, WindowPolicy

__all__ = ["AckSample", "WindowPolicy", "make_policy"]


def make_policy(settings: WindowSettings, *, learned: float | None = None) -> WindowPolicy:
    """Return a new policy for one bolt; ``learned`` is its window in an earlier run."""
    if settings.policy == "fixed":
        return FixedWindow(settings, learned=learned)
    return AiadWindow(settings, learned=learned)
