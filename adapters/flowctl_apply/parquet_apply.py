"""Rows in, rows out: a function over Parquet files whose results are kept while it goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from flowctl.errors import ConfigError, FencedError, FlowctlError
from flowctl_apply._job import Applied, Input, Job, Merge
from flowctl_apply._noted import Noted
from flowctl_apply._places import arrow_path
from flowctl_apply._row_writer import RowWriter
from flowctl_apply._unnamed import Unnamed
from flowctl_files.parquet_ranges import ParquetRanges

if TYPE_CHECKING:
    from flowctl.config import GivenSettings
    from flowctl.ports import Bolts, CheckpointStore, DeadLetter, Process
    from flowctl.runtime.launch import ViewChoice

__all__ = ["Applied", "RunOptions", "apply_parquet", "run_job"]


class RunOptions(TypedDict, total=False):
    """How a job runs; none of it changes its result.

    ``bolts``: how many threads of this process, or what makes bolts of a process (12).
    ``checkpoint`` and ``dead_letter`` as for :class:`flowctl.FlowControlSpout`: without a
    checkpoint a killed run goes on all the same.  ``files``: merge the result into this many files
    at the end (None: as they were written).  ``mode="append"``: ``out`` is the directory of a Delta
    table, to which the rows are added in one commit at the end (None: not a table).  ``view``
    shows progress.
    """

    bolts: int | Callable[[Process], Bolts]
    checkpoint: CheckpointStore | str | None
    settings: GivenSettings
    dead_letter: DeadLetter | None
    files: int | None
    mode: Literal["append"] | None
    view: ViewChoice


def apply_parquet(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    fn: Callable[..., Any],
    *,
    schema: Any,
    name: str,
    out: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    form: str | None = None,
    keep_results: bool = False,
    **options: Unpack[RunOptions],
) -> Applied:
    """Call ``fn`` on all rows of the Parquet files at ``paths``; return the files of its rows.

    As :func:`pyspark_flowctl.apply`, without Spark: ``schema`` is a ``pyarrow.Schema``.  Needs
    pyarrow.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    read = [arrow_path(os.fspath(path)) for path in several]
    job = Job(fn, schema, name=name, out=os.fspath(out), form=form, keep_results=keep_results)
    return run_job(job, Input("\n".join(read), read, None, columns), options)


def run_job(job: Job, given: Input, options: RunOptions, *, merge: Merge | None = None) -> Applied:
    """Run ``job`` to its end, or return at once what an earlier run has finished.

    ``merge`` is as for :meth:`Job.finish`.
    """
    view = options.get("view", "auto")
    _check(options)
    table = None
    if options.get("mode") is not None:
        from flowctl_apply._delta import DeltaAppend

        table = DeltaAppend(job.results, job.schema)
        table.prepare()
    # A table may have been compacted since, and its files removed: its rows are what counts.
    done = job.done(given, may_be_gone=table is not None)
    if done is None:
        done = _run(job, given, options, merge)
    else:
        _say_done(view, job.name, done.rows)
    if table is not None:
        table.append()
    return done


def _run(job: Job, given: Input, options: RunOptions, merge: Merge | None) -> Applied:
    from flowctl.runtime.flow_control_spout import FlowControlSpout
    from flowctl.runtime.parts import store_of
    from flowctl.runtime.receipt_store import ReceiptStore

    description = job.begin(given)
    if (done := job.done(given)) is not None:  # by another driver, while the input was copied
        return done
    source = ParquetRanges(description.paths, columns=description.columns)
    producer = Noted(source, job.results, run=description.run, may_grow=job.keep_results)
    checkpoint = store_of(options.get("checkpoint"))
    store = ReceiptStore(checkpoint, job.results.manifest, Unnamed(job.results))
    spout = FlowControlSpout(
        name=job.name,
        producer=producer,
        bolts=_made(options.get("bolts", 12), job.process(description)),
        checkpoint=store,
        settings=options.get("settings"),
        dead_letter=options.get("dead_letter"),
    )
    spout.receipts = store
    try:
        report = spout.run(view=options.get("view", "auto"))
        return job.finish(producer.seen, store, report, files=options.get("files"), merge=merge)
    except FencedError:
        raise
    except FlowctlError:
        # An older driver may have ended the job meanwhile, and removed what this one reads.
        if (done := job.done(given)) is None:
            raise
        store.check_owner()
        job.results.sweep(store.base)
        return done


def _made(bolts: int | Callable[[Process], Bolts], process: RowWriter) -> Bolts:
    if isinstance(bolts, int):
        from flowctl.bolts.local import LocalBolts

        process.warm_up()  # its bolts are threads of this process
        return LocalBolts(process, count=bolts)
    return bolts(process)


def _check(options: RunOptions) -> None:
    from flowctl.config import settings_of

    settings, files = settings_of(options.get("settings")), options.get("files")
    if settings.guarantee.mode != "at_least_once":
        raise ConfigError(
            "guarantee.mode",
            f"{settings.guarantee.mode} would leave rows without a result.",
            remedy="Leave it out: each row's result is kept exactly once.",
        )
    if options.get("mode") not in (None, "append"):
        raise ConfigError(
            "mode", f"{options.get('mode')!r} is not known.", remedy='Give "append", or None.'
        )
    if files is not None and files < 1:
        raise ConfigError("files", f"{files!r} is not a count.", remedy="Give 1 or more, or None.")


def _say_done(view: ViewChoice, name: str, rows: int) -> None:
    from flowctl.instrumentation.numbers import counted
    from flowctl.instrumentation.views import make_view

    shown = make_view(view) if isinstance(view, str) else view
    shown.message(
        f"{name} was finished by an earlier run: {counted(rows, 'row')}; nothing is done again"
    )
