"""Run a function over the rows of Parquet files, with results that survive a kill of the run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from flowctl.arguments import check_arguments
from flowctl.core.records import Checkpoint
from flowctl.delivery.options import APPLY, BOLTS, ApplyOptions, documented, for_apply
from flowctl.errors import ConfigError, FencedError, FlowctlError
from flowctl.runtime.launch import view_of
from flowctl_apply._job import Applied, Input, Job, Merge
from flowctl_apply._places import arrow_path
from flowctl_apply._results import Description, Results
from flowctl_apply._row_writer import RowWriter
from flowctl_apply._unnamed import Unnamed
from flowctl_files.parquet_ranges import ParquetRanges

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from flowctl.batch_ports import BatchService
    from flowctl.core.letters import Letter
    from flowctl.core.ranges.extent import Extent
    from flowctl.ports import Bolts
    from flowctl.range_ports import RangeProducer, RangeReader
    from flowctl.runtime.launch import ViewChoice
    from flowctl_apply._delta import DeltaAppend
    from flowctl_apply._iceberg_append import IcebergAppend

__all__ = ["Applied", "apply_parquet", "run_job"]

# -- The input, whose files must be the same as when the job began; there may be more ----------


def identities(extents: Mapping[str, Extent]) -> dict[str, str]:
    """Return as which each file was found."""
    return {name: f"{extent.identity} {extent.stop}" for name, extent in extents.items()}


def check_kept(known: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError` if a file of ``known`` is gone or another one; there may be more.

    Both are :func:`identities`.
    """
    for name, identity in known.items():
        if now.get(name) != identity:
            what = "is gone" if name not in now else "is not the file of the first run"
            raise ConfigError(
                "df",
                f"{name} {what}, but the job has results of it.",
                remedy="Restore it, or give another name.",
            )


def added_to(known: Mapping[str, str], found: Mapping[str, Extent]) -> Mapping[str, Extent]:
    """Return what was ``found`` and is not ``known``, whose files must then be as they were."""
    added = {name: extent for name, extent in found.items() if name not in known}
    if added:
        check_kept(known, identities(found))
    return added


class Noted:
    """A :class:`flowctl.range_ports.RangeProducer` that remembers the extents of its files.

    Raises :class:`ConfigError` if a file differs from an earlier run's, or if there are results of
    files that it does not read; :class:`FencedError` if the job is no longer the one, or in the
    round, that it was at its ``begin``.
    """

    def __init__(self, inner: RangeProducer, results: Results, begin: Description) -> None:
        self._inner = inner
        self._results = results
        self._begin = begin.run, begin.round
        self.seen: Mapping[str, Extent] = {}

    def extents(self, checkpoint: Checkpoint) -> Mapping[str, Extent]:
        """See the port."""
        self.seen = self._inner.extents(checkpoint)
        description = self._results.description()
        if description is None or (description.run, description.round) != self._begin:
            raise FencedError(
                f"another driver has begun {self._results.job!r} in {self._results.place.url}.",
                remedy="Let it work; or, to keep both, give one another name and out.",
            )
        known, now = description.files, identities(self.seen)
        check_kept(known, now)
        if strangers := checkpoint.partitions.keys() - now.keys():
            raise ConfigError(
                "name",
                f"there are results of {min(strangers)}, which this job does not read: another one"
                " has begun under its name.",
                remedy="Give another name or out.",
            )
        if known != now:
            self._results.describe(msgspec.structs.replace(description, files=now))
        return self.seen

    def reader(self) -> RangeReader:
        """See the port."""
        return self._inner.reader()

    def close(self) -> None:
        """See the port."""
        self._inner.close()


# -- A run of the job --------------------------------------------------------------------------


@documented(APPLY)
@check_arguments("paths", "out", "columns", "form", "keep_results")
def apply_parquet(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    fn: Callable[..., Any] | BatchService,
    *,
    schema: Any,
    name: str,
    out: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    form: str | None = None,
    keep_results: bool = False,
    **options: Unpack[ApplyOptions],
) -> Applied:
    """Call ``fn`` on all rows of the Parquet files at ``paths``; return the files of its rows.

    Works like :func:`pyspark_flowctl.apply`, without Spark: ``schema`` is a ``pyarrow.Schema``.
    Needs pyarrow.
    """
    checked = for_apply(name, options)
    several = [os.fspath(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not several or not all(several):
        raise ConfigError("paths", "no path given.", remedy="Name a file or a directory.")
    read = [arrow_path(path) for path in several]
    if type(schema).__module__.partition(".")[0] != "pyarrow" or not getattr(schema, "names", ()):
        raise ConfigError(
            "schema",
            f"{schema!r} is not a pyarrow.Schema with columns.",
            remedy='Give pyarrow.schema([("id", pyarrow.int64()), ("label", pyarrow.string())]).',
        )
    job = Job(fn, schema, name=name, out=os.fspath(out), form=form, keep_results=keep_results)
    return run_job(job, Input("\n".join(read), read, None, columns, shape="paths"), checked)


def run_job(
    job: Job, given: Input, options: Mapping[str, Any], *, merge: Merge | None = None
) -> Applied:
    """Run ``job`` to its end, or return the result at once if an earlier run has finished it.

    ``options`` are those of :func:`flowctl.delivery.options.for_apply`; ``merge`` is as for
    :meth:`Job.finish`.
    """
    table = _table_of(job, options)
    # A table's files may have been compacted and removed since: its rows are what counts.
    done = job.done(given, may_be_gone=table is not None)
    if done is None:
        job.check_empty(is_table=options["mode"] is not None)
        done = _run(job, given, options, merge)
    else:
        job.results.sweep()  # the driver that ended the job may have been killed before this step
        if added := _added(job, given):
            if table is not None:
                table.append()  # it may also have been killed before this one
            job.grow(given, added)
            _say_added(options["view"], job.name, added)
            done = _run(job, given, options, merge)
    if letters := _marked(job, options["dead_letter"]):
        if table is not None:
            table.append()
        job.redrive(letters)
        _say_redriven(options["view"], job.name, len(letters))
        done = _run(job, given, options, merge)
        _marked(job, options["dead_letter"])  # so that those which are done are removed
    if done.was_done:
        _say_done(options["view"], job.name, done)
    if table is not None:
        table.append()
    return done


def _table_of(job: Job, options: Mapping[str, Any]) -> DeltaAppend | IcebergAppend | None:
    """Return the table to which the rows are added at the end, which takes them; None: none."""
    table: DeltaAppend | IcebergAppend
    if options["table"] is not None:
        if options["mode"] is not None:
            raise ConfigError("table", "is given, and mode too.", remedy="Leave mode out.")
        from flowctl_apply._iceberg_append import IcebergAppend

        table = IcebergAppend(options["table"], job.results, job.schema)
    elif options["mode"] is not None:
        from flowctl_apply._delta import DeltaAppend

        table = DeltaAppend(job.results, job.schema)
    else:
        return None
    table.prepare()
    return table


def _marked(job: Job, dead_letter: Any) -> list[Letter]:
    """Return the job's letters that are to be done again; remove those that are done."""
    from flowctl.ports import RedrivableDeadLetter

    known = job.results.description()
    if known is None or not isinstance(dead_letter, RedrivableDeadLetter):
        return []
    marked = [one for one in dead_letter.to_redrive(job.name) if one.partition in known.files]
    if done := [one for one in marked if one.id in known.redriven]:
        dead_letter.on_redriven(job.name, done)
    return [one for one in marked if one.id not in known.redriven]


def _say_redriven(view: ViewChoice, name: str, letters: int) -> None:
    from flowctl.instrumentation.numbers import counted

    view_of(view).message(f"{name}: {counted(letters, 'dead letter')} to do again")


def _run(job: Job, given: Input, options: Mapping[str, Any], merge: Merge | None) -> Applied:
    description = job.begin(given)
    if (done := job.done(given)) is not None:  # another driver did it during the copy
        return done
    try:
        return _run_begun(job, description, given, options, merge)
    except FencedError:  # another driver goes on with the begun job
        raise
    except FlowctlError:
        job.withdraw(description)
        raise


def _run_begun(
    job: Job,
    description: Description,
    given: Input,
    options: Mapping[str, Any],
    merge: Merge | None,
) -> Applied:
    from flowctl.runtime.flow_control_spout import FlowControlSpout
    from flowctl.runtime.receipt_store import ReceiptStore

    source = ParquetRanges(description.paths, columns=description.columns)
    producer = Noted(source, job.results, description)
    store = ReceiptStore(options["checkpoint"], job.results.manifest, Unnamed(job.results))
    process = job.process(description, options["paced"])
    if job.service is not None:
        from flowctl_apply._asking import answered

        process = job.process(description, fn=answered(job, producer, store, options))
    spout = FlowControlSpout(
        name=job.name,
        producer=producer,
        bolts=_made(options, process),
        checkpoint=store,
        settings=options["settings"],
        dead_letter=options["dead_letter"],
    )
    spout.receipts = store
    try:
        report = spout.run(view=options["view"], deadline_s=options["deadline_s"])
        if report.letters_open:
            job.keep_copy()
        return job.finish(producer.seen, store, report, files=options["files"], merge=merge)
    except FencedError:
        raise
    except Exception:  # also errors of Spark, as files to be merged may be gone
        if (done := job.ended_by_another(given, store)) is None:
            raise
        return done


def _made(options: Mapping[str, Any], process: RowWriter) -> Bolts:
    bolts = options["bolts"]
    if callable(bolts):
        made: Bolts = bolts(process)
        return made
    from flowctl.bolts.local import LocalBolts

    process.warm_up()  # the bolts are threads of this process
    count = BOLTS if bolts == "auto" else bolts
    return LocalBolts(process, count=count, slots=options["slots"], refusal=options["refusal"])


def _added(job: Job, given: Input) -> Mapping[str, Extent]:
    """Return the files that the input of the finished job has more than when it was finished.

    Raises :class:`ConfigError` if it has more, and one that it had is gone or another one.
    """
    description = job.results.description()
    if description is None:
        return {}
    if description.copy or not given.paths:
        if description.source != given.source:  # and keep_results
            warnings.warn(
                f"{job.name} was finished with an earlier DataFrame, whose result this is.",
                RuntimeWarning,
                stacklevel=4,
            )
        return {}
    try:
        paths = [*given.paths, *description.own_paths]
        found = ParquetRanges(paths, columns=given.columns).extents(Checkpoint())
    except FlowctlError:  # the input of a finished job may have been removed
        return {}
    return added_to(description.files, found)


def _say_added(view: ViewChoice, name: str, added: Mapping[str, Extent]) -> None:
    from flowctl.instrumentation.numbers import counted

    files = counted(len(added), "file")
    rows = counted(sum(extent.stop - extent.start for extent in added.values()), "row")
    view_of(view).message(
        f"{name} was finished by an earlier run, and its input has {files} more since: {rows} to do"
    )


def _say_done(view: ViewChoice, name: str, done: Applied) -> None:
    from flowctl.instrumentation.numbers import count, counted

    nowhere = done.rows_kept_nowhere
    lost = f"; {count(nowhere)} of the input rejected and kept nowhere" if nowhere else ""
    rows = counted(done.rows, "row")
    view_of(view).message(
        f"{name} was finished by an earlier run: {rows}{lost}; nothing is done again"
    )
