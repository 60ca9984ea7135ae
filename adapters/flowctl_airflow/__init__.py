"""flowctl's jobs in Airflow 3: ``from flowctl_airflow import FlowctlOperator``.

No extra depends on Airflow: this package is for environments that already have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowctl_airflow.operator import FlowctlOperator, FlowctlTrigger, QuotaTrigger

__all__ = ["FlowctlOperator", "FlowctlTrigger", "QuotaTrigger"]


def __getattr__(name: str) -> Any:
    """Load a public name on first use: Airflow takes seconds to import, and may be missing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flowctl_airflow import operator

    return getattr(operator, name)
