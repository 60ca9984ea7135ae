"""Names of jobs and targets as arguments."""

from __future__ import annotations

from typing import Any

import click

from flowctl.instrumentation.text import repaired


class _Name(click.ParamType):
    """Text, whatever the locale: with ``LC_ALL=C`` Python may not decode an argument as UTF-8."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return repaired(value) if isinstance(value, str) else value


NAME = _Name()
