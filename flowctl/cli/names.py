"""Names of jobs and targets as arguments."""

from __future__ import annotations

import click

from flowctl.instrumentation.text import repaired


def decoded(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Return the name, whatever the locale: with ``LC_ALL=C`` Python may not decode it."""
    return None if value is None else repaired(value)
