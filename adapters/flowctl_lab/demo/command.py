"""``flowctl demo``: the command."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from flowctl.adapters import load_adapter
from flowctl.cli import doctor
from flowctl.cli.click_options import Seconds, page_beside, page_option
from flowctl.cli.run import view_mode
from flowctl.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, ConfigError
from flowctl.instrumentation.numbers import count, duration
from flowctl_lab.demo import weblog
from flowctl_lab.demo.plan import JOB, Places, Plan
from flowctl_lab.demo.rows import RowsPlan

if TYPE_CHECKING:
    from flowctl_lab.demo.demo_job import Show
    from flowctl_lab.demo.kill import Kill


_SEED_DEFAULT = 7  # any value; fixed, so that two people see the same demo
# Few enough that the cost of a record is noticeable: half a millisecond, and 2.4 ms with threads.
_RECORDS_DEFAULT, _RECORDS_LOCAL = 200_000, 30_000
_BOLTS_DEFAULT = 12  # each takes a line of the view, in a terminal of 24 lines
# With the start of Spark (8 to 13 s) and the check (2 s), a demo takes half a minute at most on two
# busy cores.
_SECONDS_DEFAULT = 8.0
# With threads the demo is a first look: just long enough to see the slow bolt.
_SECONDS_LOCAL = 6.0
# Fewer records would be done before the first save, leaving nothing to resume.
_RECORDS_MIN_KILL = 2_000


@click.command()
@click.option("--seed", default=_SEED_DEFAULT, show_default=True, help="Determines the log, the"
              " slow bolt and the moment of the kill.")  # fmt: skip
@click.option("--seconds", type=Seconds(min=0.5), help="How long the work should take; "
              f"{_SECONDS_DEFAULT:g}, or {_SECONDS_LOCAL:g} with --local.")  # fmt: skip
@click.option("--bolts", default=_BOLTS_DEFAULT, show_default=True,
              type=click.IntRange(min=2), help="How many bolts.")  # fmt: skip
@click.option("--records", type=click.IntRange(min=1), help="Lines of the log; "
              f"{_RECORDS_DEFAULT}, or {_RECORDS_LOCAL} with --local.")  # fmt: skip
@click.option("--kill", is_flag=True, help="Kill the driver with SIGKILL halfway and resume.")
@click.option("--ranges", is_flag=True, help="Let the bolts read rows of Parquet"
              " files, and return a DataFrame; with a kill.")  # fmt: skip
@click.option("--local", is_flag=True, help="Use threads instead of Spark, for a quick look.")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path),
              help="Keep everything in this directory; an interrupted demo in it is"
                   " resumed.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the temporary directory.")
@click.option("--plain", is_flag=True, help="Plain lines instead of the live view.")
@page_option
@click.option("--svg", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Draw the live view near the end of the slow phase into this file.")  # fmt: skip
@click.option("--columns", multiple=True, type=click.IntRange(min=40, max=400), default=(108,),
              show_default=True, help="Width of the picture.  May be repeated: then there is a"
              " file for each width, named FILE-COLUMNS.")  # fmt: skip
def demo(
    *,
    seed: int,
    seconds: float | None,
    bolts: int,
    records: int | None,
    kill: bool,
    ranges: bool,
    local: bool,
    directory: Path | None,
    keep: bool,
    plain: bool,
    svg: Path | None,
    columns: tuple[int, ...],
) -> int:
    """Run the main job on embedded parts and check it.

    Generates a web access log, runs it through bolts on a local Spark into SQLite, with its own
    Valkey for the checkpoint and one bolt 10x slower for a while; then compares the sink with the
    input.  Exit code 0 only if every line is there exactly once.
    """
    from flowctl_lab.demo.demo_job import Show

    began_s = time.monotonic()
    seconds = seconds or (_SECONDS_LOCAL if local else _SECONDS_DEFAULT)
    records = records or (_RECORDS_LOCAL if local else _RECORDS_DEFAULT)
    mode = view_mode(plain, False)
    page = page_beside(mode)
    show = Show(mode=mode, svg=svg, columns=columns, page=page)
    _check(records=records, kill=kill or ranges, svg=svg)
    check_installed(on_spark=not local, by_ranges=ranges)
    if ranges:
        return _perform_ranges(
            seed, RowsPlan(records, bolts, seconds, local, page or mode), directory, keep
        )
    wanted = Plan(seed=seed, records=records, bolts=bolts, seconds=seconds, local=local)
    with _workplace(directory, keep) as places:
        plan = _prepare(places, wanted)
        try:
            return _perform(plan, places, kill=kill, show=show, began_s=began_s)
        except KeyboardInterrupt:
            places.keep = True
            click.echo(f"resume with: {_resume_command(places)}", err=True)
            return EXIT_INTERRUPTED


def _check(*, records: int, kill: bool, svg: Path | None) -> None:
    """Refuse early options that would fail only after a while."""
    if kill and records < _RECORDS_MIN_KILL:
        raise ConfigError(
            "--kill",
            f"{count(records)} records would be done before the driver can be killed.",
            remedy=f"Give at least --records {_RECORDS_MIN_KILL}.",
        )
    if svg is None:
        return
    if kill:
        raise ConfigError("--svg", "can't be used with --kill.", remedy="Leave one of them out.")
    if not svg.absolute().parent.is_dir():
        raise ConfigError(
            "--svg", f"there is no directory {svg.absolute().parent}.", remedy="Make it first."
        )


def _perform_ranges(seed: int, plan: RowsPlan, directory: Path | None, keep: bool) -> int:
    from flowctl_lab.demo import rows

    with _workplace(directory, keep) as places:
        if (places.root / "in").exists():
            raise ConfigError(
                "--dir", f"{places.root} holds a demo.", remedy="Give a new directory."
            )
        code = rows.perform(places.root, plan, seed=seed)
        places.keep = places.keep or code != EXIT_FINISHED
        return code


@contextmanager
def _workplace(directory: Path | None, keep: bool) -> Iterator[Places]:
    """Yield the demo's directory; a temporary one is deleted at the end if all went well."""
    root = directory or Path(tempfile.mkdtemp(prefix="flowctl-demo-"))
    places = Places(root.absolute(), keep=keep or directory is not None)
    try:
        places.make()
    except OSError as error:
        raise ConfigError(
            "--dir",
            f"{places.root} can't be used: {error.strerror or error}.",
            remedy="Give a directory that you can write to.",
        ) from None
    try:
        yield places
    except BaseException:
        places.keep = True
        raise
    finally:
        if places.keep:
            click.echo(f"kept in {places.root}", err=True)
        else:
            shutil.rmtree(root, ignore_errors=True)


def _prepare(places: Places, wanted: Plan) -> Plan:
    """Return the plan of an interrupted demo in this directory, else ``wanted``."""
    found = Plan.load(places.root)
    if found is not None:
        click.echo(f"resuming the demo in {places.root}, seed {found.seed}")
        return found
    if any(places.logs.iterdir()) or places.database.exists():
        raise ConfigError(
            "--dir", f"{places.root} holds other files.", remedy="Give a new directory."
        )
    began_s = time.monotonic()
    weblog.write(places.logs, seed=wanted.seed, records=wanted.records, files=wanted.files)
    wanted.save(places.root)
    click.echo(
        f"made a web access log of {count(wanted.records)} lines in {wanted.files} files from "
        f"seed {wanted.seed} in {duration(time.monotonic() - began_s)}: {places.logs}"
    )
    return wanted


def _perform(plan: Plan, places: Places, *, kill: bool, show: Show, began_s: float) -> int:
    from flowctl_lab.demo.demo_job import run_once

    server: Any = load_adapter("flowctl_redis.embedded", "redis").EmbeddedServer(places.redis)
    redis_url = server.start()
    killed: Kill | None = None
    try:
        if kill:
            from flowctl_lab.demo.kill import kill_and_resume

            killed = kill_and_resume(plan, places, redis_url, show=show)
        else:
            run_once(plan, places, redis_url, show=show, resume=_resume_command(places))
    finally:
        server.stop()
    return _tell(plan, places, killed, began_s)


def _tell(plan: Plan, places: Places, killed: Kill | None, began_s: float) -> int:
    from flowctl_lab.demo import story
    from flowctl_lab.demo.demo_job import Outcome, last_epoch
    from flowctl_lab.demo.verify import verify

    verdict = verify(places.logs, places.database)
    outcome = Outcome.load(places.outcome)
    click.echo(f"\n{JOB} of seed {plan.seed}")
    epoch = last_epoch(places)
    if epoch is not None:
        share = story.share_of_slow_bolt(plan, places.journal, epoch)
        click.echo(story.slow_line(plan, share, outcome))
    if killed is not None:
        click.echo(story.kill_line(killed, outcome, verdict))
    for line in story.verdict_lines(plan, verdict, began_s):
        click.echo(line)
    places.keep = places.keep or not verdict.exact
    return EXIT_FINISHED if verdict.exact else EXIT_FAILED


def _resume_command(places: Places) -> str:
    return shlex.join(["flowctl", "demo", "--dir", str(places.root)])


_EXTRAS: Final = {"pyspark": "spark", "java": "java", "redis": "redis", "server": "valkey"}


def check_installed(*, on_spark: bool, by_ranges: bool) -> None:
    """Raise :class:`ConfigError` with all missing packages and the command that installs them.

    ``by_ranges`` stands for the demo of rows, which needs pyarrow in place of Redis.
    """
    missing = dict(_missing(on_spark=on_spark, by_ranges=by_ranges))
    if missing:
        raise ConfigError(
            "demo",
            "; ".join(missing.values()) + ".",
            remedy=f"Run: pip install 'flowctl-spark[{','.join(missing)}]'",
        )


def _missing(*, on_spark: bool, by_ranges: bool) -> Iterator[tuple[str, str]]:
    if by_ranges:
        if importlib.util.find_spec("pyarrow") is None:
            yield "parquet", "pyarrow: not installed"
        checks = []
    else:
        checks = [doctor.check_redis_client, doctor.check_server]
    if on_spark:
        checks += [doctor.check_pyspark, doctor.check_java]
    for check in checks:
        found = check()
        if not found.ok:
            yield _EXTRAS[found.name], f"{found.name}: {found.seen.rstrip('.')}"
