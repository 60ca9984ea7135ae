"""``flowctl top`` and ``flowctl page``: look at runs that go on elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from flowctl.adapters import load_adapter
from flowctl.cli.click_options import (
    decoded,
    directory_option,
    opened_store,
    page_beside,
    page_option,
    redis_option,
)
from flowctl.errors import CheckpointCorruptError, ConfigError, InfrastructureError
from flowctl.instrumentation.snapshot import View
from flowctl.instrumentation.text import printable, shown_command
from flowctl.instrumentation.views import Page, make_view

if TYPE_CHECKING:
    from flowctl.instrumentation.shown import Shown
    from flowctl.instrumentation.team_page import Seen

_EVERY_S: Final = 1.0  # a run keeps what it shows as often
_PAGE_EVERY_S: Final = 2.0  # of all jobs and targets; walks all keys


@click.command()
@click.argument("name", callback=decoded)
@redis_option
@directory_option
@page_option
def top(*, name: str, url: str | None, directory: Path | None) -> None:
    """Watch job NAME, which runs in another terminal or on another machine, until Ctrl-C.

    What is shown is what the run itself shows, once a second: it keeps that beside its checkpoint.
    """
    with opened_store(url, directory) as store:
        targets = _targets(url, directory)
        first = _shown(store, name, targets)
        if first is None:
            raise _nothing(store, name, targets)
        inner = make_view("auto")
        try:
            read = partial(_shown, store, name, targets)
            Watch(read, _paged(inner, first), join=inner.join).run(first)
        finally:
            inner.leave()


def _targets(url: str | None, directory: Path | None) -> Any:
    """Return what Spark's tasks and paced targets keep in the Redis, if there is one."""
    if not url or directory is not None:
        return None
    return load_adapter("flowctl_redis.targets", "redis").RedisTargets(url)


def _written(targets: Any, name: str) -> Shown | None:
    """Return what the newest write of a job without a driver shows."""
    from flowctl.instrumentation.shown_parts import shown_of
    from flowctl.instrumentation.task_part import unpack

    parts = unpack(targets.parts(name))
    if not parts:
        return None
    with suppress(ConfigError, CheckpointCorruptError):  # no call was paced yet, or it is damaged
        return shown_of(parts, time.time(), targets.read(parts[-1].target))
    return shown_of(parts, time.time())


def _shown(store: Any, name: str, targets: Any) -> Shown | None:
    """Return what the newest run of a job shows, or its newest write; None if there is nothing."""
    from flowctl.instrumentation.shown import unpack

    written = None if targets is None else _written(targets, name)
    if written is not None and not store.shown(name):
        return written
    data = store.shown(name)
    found = unpack(data) if data else None
    if data and found is None:
        raise ConfigError(
            "NAME",
            f"what the run of {name!r} shows can't be read: another version of flowctl wrote it.",
            remedy="Use the flowctl that the run uses.",
        )
    return found


def _nothing(store: Any, name: str, targets: Any) -> ConfigError:
    from flowctl.instrumentation.shown import unpack

    seen = [shown.job for data in store.all_shown() if (shown := unpack(data)) is not None]
    seen += [] if targets is None else targets.jobs_with_parts()
    return ConfigError(
        "NAME",
        f"no run of {name!r} has shown anything in {store.place}.",
        remedy=f"Known: {', '.join(map(printable, sorted(seen)))}."
        if seen
        else "A run keeps what it shows where its checkpoint is: give the same --redis or --dir.",
    )


def _paged(view: View, shown: Shown) -> View:
    """Return ``view``, beside a page if --page asks for one."""
    place = page_beside("auto")
    if place is None:
        return view
    from flowctl.instrumentation.page import PageState, PageView

    explain = shown_command(["flowctl", "explain", shown.job])
    elsewhere = f"Which records failed, and why, is on the run's own page and in: {explain}"
    return PageView(view, PageState(elsewhere=shown.elsewhere or elsewhere), place)


class Watch:
    """Shows by ``view`` what ``read`` returns, until the run has ended.  For one thread.

    ``join`` is told how long ago the run began [s].
    """

    def __init__(
        self,
        read: Callable[[], Shown | None],
        view: View,
        *,
        join: Callable[[float], None] = lambda elapsed_s: None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._read, self._view, self._join = read, view, join
        self._now, self._sleep = now, sleep
        self._problem = ""

    def run(self, first: Shown) -> None:
        """Show ``first`` and what follows; returns when the report of a run is shown."""
        shown, told = first, None
        self._view.start(first.job, first.headline)
        while True:
            if told is None or told.driver != shown.driver:
                self._begin(shown)
            if shown.snapshot is not None and shown != told:
                self._view.update(shown.snapshot)
            if shown.report is not None:
                return self._view.stop(shown.report)
            told = shown
            self._sleep(_EVERY_S)
            shown = self._next(shown)

    def _begin(self, shown: Shown) -> None:
        """Show what another run of the job shows from now on: the first, or one after a kill."""
        self._view.message(f"watching {shown.driver}; Ctrl-C ends the watching, not the run")
        if shown.snapshot is not None:
            self._join(shown.snapshot.elapsed_s)

    def _next(self, shown: Shown) -> Shown:
        try:
            found = self._read() or shown
        except InfrastructureError as error:  # it may come back
            self._tell(error.problem)
            return shown
        self._tell(self._silence(found))
        return found

    def _silence(self, shown: Shown) -> str:
        if not shown.is_silent(self._now()):
            return ""
        since = datetime.fromtimestamp(shown.at_unix_ms / 1000)
        return (
            f"no word since {since:%H:%M:%S}: {shown.driver} was killed, stands still, or can't"
            " reach its checkpoint store"
        )

    def _tell(self, problem: str) -> None:
        """Tell a problem once, until there is another or none."""
        if problem and problem != self._problem:
            self._view.message(problem)
        self._problem = problem


@click.command()
@redis_option
@directory_option
@click.option(
    "--page", "place", metavar="[HOST:]PORT", default="0", show_default="any free one",
    help="Where to serve it; HOST is 127.0.0.1 unless given, and on another a token is asked for.",
)  # fmt: skip
def page(*, url: str | None, directory: Path | None, place: str) -> None:
    """Serve a page of all jobs and targets that share a Redis, or a directory; until Ctrl-C.

    Who uses which target, how much of it, what was refused; what each job says of itself.  It only
    reads.
    """
    from flowctl.instrumentation.team_page import TeamPage

    where = Page.at(place, name="--page")
    with opened_store(url, directory) as store:
        targets = _targets(url, directory)
        team = TeamPage(store.place, where)
        team.show(_seen(store, targets))
        click.echo(f"page at {team.url}")
        while True:
            time.sleep(_PAGE_EVERY_S)
            try:
                team.show(_seen(store, targets))
            except InfrastructureError as error:  # it may come back
                team.fail(error.problem)


def _seen(store: Any, targets: Any) -> Seen:
    """Return what the jobs show, and the targets that can be read."""
    from flowctl.instrumentation.shown import unpack
    from flowctl.instrumentation.team_page import Seen

    shown = [unpack(data) for data in store.all_shown()]
    read, damaged = targets.read_all() if targets is not None else ([], [])
    known = [each for each in shown if each is not None]
    names = {each.job for each in known}
    writes = [] if targets is None else targets.jobs_with_parts()
    known += [w for job in writes if job not in names and (w := _written(targets, job))]
    return Seen(
        at_s=time.time(),
        shown=tuple(known),
        targets=tuple(read),
        unread=shown.count(None) + len(damaged),
    )
