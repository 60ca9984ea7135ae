"""``flowctl targets list · show · set · reset``: what ``paced`` has learned, and why."""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from typing import Any

import click

from flowctl.cli.click_options import Seconds, decoded
from flowctl.config import MetricsSettings
from flowctl.core.pacing.figures import StoredTarget, StoredUse
from flowctl.core.pacing.leases import Sums
from flowctl.errors import ConfigError
from flowctl.instrumentation.metrics_server import MetricsServer
from flowctl.instrumentation.numbers import counted
from flowctl.instrumentation.prometheus import ScrapedTargets
from flowctl.instrumentation.text import printable

_URL_VARIABLE = "FLOWCTL_REDIS_URL"
_EVERY_MOST_S = 86_400.0  # a day: who looks less often has no terminal open for it
_NOW_S = 3.0  # a working worker is seen four times a second

_redis = click.option(
    "--redis", "url", metavar="URL", envvar=_URL_VARIABLE, required=True, show_envvar=True,
    help="The Redis that the programs give to paced().",
)  # fmt: skip
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def targets() -> None:
    """Show what paced targets take, who calls them, and why the limit is what it is."""


@targets.command("list")
@_redis
@_json
@click.option("--every", metavar="SECONDS", type=Seconds(min=0.1, max=_EVERY_MOST_S),
              help="Repeat at this interval until Ctrl-C.")  # fmt: skip
def list_command(url: str, as_json: bool, every: float | None) -> None:
    """List the targets that were paced in the last 30 days."""
    stored = _targets(url)
    while True:
        found = _read_all(stored)
        if every and not as_json:
            click.clear()  # does nothing unless on a terminal
        if as_json:
            click.echo(json.dumps([_plain(each) for each in found], indent=2))
        elif not found:
            click.echo("No targets.")
        else:
            width = max(len(printable(each.target)) for each in found)
            for each in found:
                click.echo(f"{printable(each.target):<{width}}  {_headline(each)}")
        if not every:
            return
        time.sleep(every)


@targets.command("metrics")
@_redis
@click.option(
    "--port",
    required=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0: any free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
def metrics_command(url: str, port: int, host: str) -> None:
    """Serve metrics of all targets to Prometheus.  Limit, use, refusals and waits; until Ctrl-C."""
    stored = _targets(url)
    server = MetricsServer(
        MetricsSettings(port=port, host=host), ScrapedTargets(lambda: _read_all(stored))
    )
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"metrics at http://{shown}:{server.port}/metrics")
    try:
        threading.Event().wait()
    finally:
        server.close()


def _read_all(stored: Any) -> list[StoredTarget]:
    """Return the targets that can be read; damaged ones are reported and left out."""
    found, damaged = stored.read_all()
    for error in damaged:
        click.echo(printable(str(error)), err=True)
    return list(found)


@targets.command("show")
@click.argument("target", callback=decoded)
@_redis
@_json
def show_command(target: str, url: str, as_json: bool) -> None:
    """Show TARGET in detail.  The limit, the reason for it, and use, refusals and waits by job."""
    found: StoredTarget = _targets(url).read(target)
    if as_json:
        click.echo(json.dumps(_plain(found), indent=2))
        return
    click.echo(f"{printable(target)}  {_headline(found)}")
    click.echo(f"why: {printable(found.reason)}")
    for name, value in sorted(found.operator.items()):
        click.echo(f"set by hand: {name} {value:g}")
    if found.budget is not None:
        click.echo(f"budget: {found.budget:g} a second, used {found.cost_per_s:.4g}")
    for use in found.quotas:
        click.echo(_quota_line(use))
    if found.rate is not None:
        click.echo(f"rate: {found.rate:.4g} a second, learned")
    for job in sorted({*found.jobs, *(claim.job for claim in found.claims)}):
        sums = found.jobs.get(job, Sums())
        click.echo(f"{printable(job) or '(no job)'}: {_job_line(found, job, sums)}")


@targets.command("set")
@click.argument("target", callback=decoded)
@click.option("--min", "least", metavar="N|none", help="Allow at least this many calls in flight.")
@click.option("--max", "most", metavar="N|none", help="Allow at most this many calls in flight.")
@click.option(
    "--budget", metavar="COST|none", help="The cost per second that all programs together may use."
)
@_redis
def set_command(
    target: str, least: str | None, most: str | None, budget: str | None, url: str
) -> None:
    """Set bounds for the limit of TARGET.  Running programs follow them; `none` removes one."""
    given = {"min": least, "max": most, "budget": budget}
    values = {name: _number(name, text) for name, text in given.items() if text is not None}
    if not values:
        raise ConfigError("--max", "nothing to set.", remedy="Give --min, --max or --budget.")
    stored = _targets(url)
    known = {**stored.read(target).operator, **values}
    if known.get("min") and known.get("max") and known["min"] > known["max"]:
        raise ConfigError("--min", "is more than --max.", remedy="Give --min N at most --max.")
    stored.set(target, values)
    click.echo(f"{printable(target)}: " + ", ".join(f"{n} {given[n]}" for n in values))


@targets.command("reset")
@click.argument("target", callback=decoded)
@_redis
def reset_command(target: str, url: str) -> None:
    """Forget what was learned about TARGET.  Its workers begin again with a few calls at once."""
    _targets(url).reset(target)
    click.echo(f"{printable(target)}: begins again.")


def _targets(url: str) -> Any:
    from flowctl.adapters import load_adapter

    return load_adapter("flowctl_redis.targets", "redis").RedisTargets(url)


def _number(name: str, text: str) -> float | None:
    if text == "none":
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    is_whole = name == "budget" or value == int(value)
    if not 0 < value < float("inf") or not is_whole:
        what = "a number above 0" if name == "budget" else "a whole number above 0"
        raise ConfigError(f"--{name}", f"got {text!r}.", remedy=f"Give {what}, or none.")
    return value


def _headline(found: StoredTarget) -> str:
    limit = f"limit {found.limit}" if found.limit else "nothing learned"
    if found.seen_s > _NOW_S:
        return f"{limit} · not used for {found.seen_s:.0f} s"
    return " · ".join(
        (
            limit,
            f"used {found.used:.2f}",
            f"{found.recent.refused_share:.1%} refused",
            f"{found.calls_per_s:.1f} calls/s",
            counted(len(found.claims), "worker"),
        )
    )


def _job_line(found: StoredTarget, job: str, sums: Sums) -> str:
    mine = [claim for claim in found.claims if claim.job == job]
    weight = f", weight {mine[0].weight:g}" if mine else ""
    permits = counted(sum(claim.holds for claim in mine), "permit")
    return (
        f"{permits} for {counted(len(mine), 'worker')}{weight};"
        f" in all {counted(sums.calls, 'call')}, cost {sums.cost:g}, {sums.refused} refused"
        f" ({sums.refused_share:.1%}), {sums.failed} failed, {sums.waited_s:.0f} s waited"
    )


def _quota_line(use: StoredUse) -> str:
    ends = "never" if use.reset_s is None else f"in {timedelta(seconds=round(use.reset_s))}"
    jobs = ", ".join(
        f"{printable(job) or '(no job)'} {used:,.6g}" for job, used in use.by_job.items()
    )
    return (
        f"quota {printable(use.quota)}: limit {use.amount:,.12g}, used {use.used:,.6g},"
        f" left {use.left:,.6g}, reset {ends}{f'; {jobs}' if jobs else ''}"
    )


def _plain(found: StoredTarget) -> dict[str, Any]:
    """Return a target in the form of JSON, with its sums by name."""
    return {
        "target": found.target,
        "limit": found.limit,
        "reason": found.reason,
        "budget": found.budget,
        "rate": found.rate,
        "quotas": [
            {
                "quota": use.quota,
                "limit": use.amount,
                "used": use.used,
                "left": use.left,
                "reset_s": use.reset_s,
                "jobs": dict(use.by_job),
            }
            for use in found.quotas
        ],
        "leased": found.leased,
        "seen_s": found.seen_s,
        "recent_s": found.recent_s,
        "recent": found.recent._asdict(),
        "jobs": {job: sums._asdict() for job, sums in found.jobs.items()},
        "workers": [claim._asdict() for claim in found.claims],
        "set": dict(found.operator),
    }
