"""The steps of a job that turns rows into rows: begin or resume, process, finish."""

from __future__ import annotations

import importlib
import secrets
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flowctl.batch_ports import BatchService
from flowctl.errors import ConfigError, FencedError, InternalError, SourceError
from flowctl_apply._answers import stand_in
from flowctl_apply._places import Place, arrow_path, place_at
from flowctl_apply._results import (
    Description,
    Finished,
    ResultFile,
    Results,
    files_of,
    merged_name,
    total_rows,
)
from flowctl_apply._row_writer import AsyncRowWriter, Rows, RowWriter, Target, encoded
from flowctl_apply._rows import arrow, shape_of
from flowctl_apply._uses import fingerprint, uses_of

if TYPE_CHECKING:
    from flowctl.core.letters import Letter
    from flowctl.core.ranges.extent import Extent
    from flowctl.delivery.pacers import RowTargets
    from flowctl.instrumentation.snapshot import Report
    from flowctl.pacing.api import Paced
    from flowctl.runtime.receipt_store import ReceiptStore
    from flowctl.runtime.receipts import Entry


# -- Small files of rows are merged into fewer ones --------------------------------------------


def shares_of(files: Sequence[ResultFile], count: int) -> list[Sequence[ResultFile]]:
    """Divide ``files``, in order, into at most ``count`` shares of about equal bytes."""
    total = sum(file.bytes for file in files)
    shares: list[list[ResultFile]] = [[] for _ in range(count)]
    before = 0
    for file in files:
        middle = before + file.bytes / 2
        shares[min(int(count * middle / total) if total else 0, count - 1)].append(file)
        before += file.bytes
    return [share for share in shares if share]


def merge_files(
    place: Place, job: str, schema: Any, names: Sequence[str], *, epoch: int
) -> ResultFile:
    """Write the rows of the files ``names`` into one new file of the driver of ``epoch``.

    The old files stay.  Memory holds one of them at a time, and the new file in its stored form.
    """
    parquet = importlib.import_module("pyarrow.parquet")
    pyarrow = arrow()
    sink = pyarrow.BufferOutputStream()
    rows = 0
    with parquet.ParquetWriter(sink, schema) as writer:
        for name in names:
            table = parquet.read_table(pyarrow.BufferReader(place.get(name)))
            writer.write_table(table.cast(schema))
            rows += table.num_rows
    data = sink.getvalue().to_pybytes()
    merged = merged_name(job, epoch)
    place.put(merged, data)
    return ResultFile(merged, rows, len(data))


# -- A job that turns rows into rows -----------------------------------------------------------


_RUN_BYTES = 8  # random, so that no two runs share it
Merge = Callable[[Sequence[Sequence[str]], int], Sequence[ResultFile]]
"""Merges shares of files; the second argument is the epoch of the driver, for their names."""


class Input(NamedTuple):
    """The input: Parquet files at ``paths``, or those that ``write`` writes to a directory's URL.

    ``source`` distinguishes it from other input; ``columns`` are the columns to read (None: all).
    ``marks`` has the size and time of each file that the driver can see.  ``shape`` distinguishes
    it from other input but not from itself with more files; "" if it is not read where it is.
    """

    source: str
    paths: Sequence[str] = ()
    write: Callable[[str], None] | None = None
    columns: Sequence[str] | None = None
    marks: Mapping[str, str] = MappingProxyType({})
    shape: str = ""

    def is_more_than(self, known: Description) -> bool:
        """Whether it is the input that a job began with, and perhaps more files."""
        given = {*self.paths, *known.own_paths}
        return bool(self.shape) and known.shape == self.shape and set(known.paths) <= given


class Applied(NamedTuple):
    """The result: ``files`` (URLs, in the order of the input) hold ``rows``.

    ``was_done`` tells that an earlier run had finished the job.  ``report`` is the run's report
    (None if there was no run).  ``rows_kept_nowhere`` is the number of input rows that were
    rejected and are in no dead letter.
    """

    files: Sequence[str]
    rows: int
    was_done: bool
    report: Report | None
    rows_kept_nowhere: int = 0

    def __repr__(self) -> str:
        # Notebooks show the repr, and there may be thousands of files.
        return f"Applied({self.rows} rows in {len(self.files)} files, was_done={self.was_done})"


class Job:
    """A job that turns rows into rows.  For one thread; :meth:`run` may be called again.

    ``schema`` is a ``pyarrow.Schema``; ``form`` is the form in which ``fn`` gets rows ("records",
    "arrow", "pandas"; None: by its annotation).  ``keep_results`` keeps the results of an earlier
    ``fn``, or a copy of an earlier DataFrame, and goes on from there.
    """

    columns_are = "columns"  # the parameter that names the columns to read

    def __init__(
        self,
        fn: Callable[..., Any] | BatchService,
        schema: Any,
        *,
        name: str,
        out: str,
        form: str | None = None,
        keep_results: bool = False,
    ) -> None:
        from flowctl.runtime.parts import check_name

        check_name(name)
        self.name = name
        self.schema = schema
        self.results: Results = Results(place_at(out), name)
        self.service: BatchService | None = fn if isinstance(fn, BatchService) else None
        made = stand_in(fn, form) if isinstance(fn, BatchService) else fn
        self.fn = made
        self.code: str = fingerprint(made)
        self.uses: Mapping[str, str] = uses_of(made)  # noted before calls of ``fn`` change values
        self._shape = shape_of(made, form)
        self.keep_results = keep_results
        self._round = 0

    def done(self, given: Input, *, may_be_gone: bool = False) -> Applied | None:
        """Return the result if an earlier run has finished the job, else None.

        Raises :class:`ConfigError` if the name belongs to another job, and :class:`InternalError`
        if a file of the result is missing, unless it ``may_be_gone``.
        """
        known = self.results.description()
        if known is not None:
            self._check_same(known, given)
        self._check_apart(given)
        finished = self.results.finished()
        if finished is None:
            return None
        if not may_be_gone:
            self.results.check_there(finished.files)
        return self._applied(finished, None)

    def check_empty(self, *, is_table: bool) -> None:
        """Raise :class:`ConfigError` if ``out`` has Parquet files that no job of flowctl wrote.

        Readers of the finished job's directory would read them as well, also in partition
        directories such as ``day=1/``.  A table is exempt, since its log lists its files.
        """
        if is_table or self.results.description() is not None:
            return
        if stranger := self.results.stranger():
            raise ConfigError(
                "out",
                f"{self.results.place.url} holds {stranger}, which no job named there has written.",
                remedy="Give another directory; or remove that file, if it is an earlier result.",
            )

    def withdraw(self, description: Description) -> None:
        """Free the job's name, or end its round, if its input was never seen."""
        now = self.results.description()
        if now == description and not (now.copy or now.is_noted):
            self.results.withdraw()

    def begin(self, given: Input) -> Description:
        """Return the input to read: that of the earlier run, or a new one, copied if necessary.

        A copy counts only once it is complete; after a kill before that, the next run makes
        another.  If another driver began while this one copied, the other driver's input counts.
        """
        known = self.results.description()
        begun = self._new(given) if known is None else self._continued(known, given)
        self._round = begun.round
        return begun

    def _new(self, given: Input) -> Description:
        copy, paths = "", list(given.paths)
        if given.write is not None:
            copy = f"input-{secrets.token_hex(_RUN_BYTES)}"
            directory = f"{self.results.directory}/{copy}"
            given.write(self.results.place.path(directory))
            files = self.results.place.names(directory, recursive=True)
            paths = [
                self.results.place.own_path(file.name)
                for file in files
                if file.name.endswith(".parquet")
            ]
        description = described(self, given._replace(paths=paths), copy)
        return self.results.begin(description)  # an unused copy is removed with the leftovers

    def _continued(self, known: Description, given: Input) -> Description:
        """Return how to go on; ``keep_results`` allows another function and added files."""
        if not known.is_mixed and self.is_another(known):
            known = msgspec.structs.replace(known, is_mixed=True)
            self.results.describe(known)
        if known.source == given.source:
            return known
        if known.copy or not given.paths:  # and keep_results
            warnings.warn(
                f"{self.name} goes on with the copy that it has of an earlier DataFrame.",
                RuntimeWarning,
                stacklevel=5,
            )
            return known
        grown = _with_input(known, given)
        self.results.describe(grown)
        return grown

    def grow(self, given: Input, added: Collection[str]) -> None:
        """Begin another round of the finished job: it does the files ``added`` to its input."""
        known, finished = self.results.description(), self.results.finished()
        if known is None or finished is None or not added:  # another driver has begun it
            return
        self.results.begin(next_round(_with_input(known, given), finished))

    def redrive(self, letters: Sequence[Letter]) -> None:
        """Begin another round of the finished job: it does again the rows that became letters.

        Their rows are read again, and copied for the round.  Raises :class:`SourceError`.
        """
        known, finished = self.results.description(), self.results.finished()
        if known is None or finished is None:
            return
        copy = f"letters-{known.round + 1}-{secrets.token_hex(_RUN_BYTES)}"
        by_partition: dict[str, list[int]] = {}
        for one in letters:
            by_partition.setdefault(one.partition, []).append(int(str(one.position)))
        paths = []
        for number, (partition, rows) in enumerate(sorted(by_partition.items())):
            folders = [part for part in partition.split("/")[:-1] if "=" in part]
            name = "/".join([self.results.directory, copy, *folders, f"{number}.parquet"])
            self.results.place.put(name, encoded(rows_of(partition, sorted(rows))))
            paths.append(self.results.place.own_path(name))
        begun = next_round(known, finished, paths=paths, copy=copy)
        self.results.begin(
            msgspec.structs.replace(begun, redriven=[letter.id for letter in letters])
        )

    def keep_copy(self) -> None:
        """Keep the copy of the input, though the job ends: letters are rows of it."""
        known = self.results.description()
        if known is not None and known.copy and known.copy not in known.copies:
            copies = [*known.copies, known.copy]
            self.results.describe(msgspec.structs.replace(known, copies=copies))

    def process(
        self,
        description: Description,
        paced: Paced | RowTargets | None = None,
        fn: Callable[..., Any] | None = None,
    ) -> RowWriter:
        """Return the function that the bolts run; ``paced`` is the limit for calls of ``fn``,
        or knows that of each row's target.

        ``fn`` stands in for that of the job, if given.
        """
        from flowctl.failure.callables import is_async

        fn = self.fn if fn is None else fn
        kind = AsyncRowWriter if is_async(fn) else RowWriter
        results = self.results
        target = Target(results.place, self.name, f"{results.directory}/job.json", description.run)
        return kind(fn, self._shape, self.rows(), target, paced)

    def rows(self) -> Rows:
        """Return what a file of results holds of what ``fn`` returned."""
        return Rows(self.schema)

    def finish(
        self,
        extents: Mapping[str, Extent],
        owner: ReceiptStore,
        report: Report | None = None,
        *,
        files: int | None = None,
        merge: Merge | None = None,
    ) -> Applied:
        """Check that everything is done, merge the results into ``files`` files, and tidy up.

        ``owner`` is the store with which this driver acquired the job; ``merge`` merges shares of
        files, by default this process.  Raises :class:`FencedError` if a newer driver has acquired
        the job: then that driver ends it.
        """
        entries = self._entries(extents, owner)
        earlier, made = self._made(entries)
        if files is not None and len(made) > files:
            made = self._merged(made, files, owner.base[0], merge)
        made = [*earlier, *made]
        self.results.check_there(made)
        rows_in = sum(one.records for one in entries)
        if rows_in and not made:
            warnings.warn(
                f"{self.name}: fn returned no result for any of {rows_in} rows. Did it forget its"
                " return? To run it again, give another name or out.",
                RuntimeWarning,
                stacklevel=3,
            )
        owner.check_owner()
        nowhere = sum(one.kept_nowhere for one in entries)
        told = Finished(
            made, total_rows(made), rows_in, owner.base, rows_kept_nowhere=nowhere,
            round=self._round,
        )  # fmt: skip
        kept = self.results.finish(told)
        self.results.sweep(owner.base)
        # Another driver that ended at the same moment may have been first, or have removed files
        # that this one adopted.  So the result returned is the one that is named now; none is if
        # that driver has begun another round.
        finished = self.results.finished() or kept
        self.results.check_there(finished.files)
        return self._applied(finished, report)

    def _made(self, entries: Sequence[Entry]) -> tuple[list[ResultFile], list[ResultFile]]:
        """Return the result of earlier rounds, and that of this one: files that are there."""
        description = self.results.description()
        if description is None or description.round != self._round:
            raise FencedError(
                f"another driver has ended {self.name!r} and begun to do what its input has more.",
                remedy="Let it work.",
            )
        made = files_of(entries, description)
        if len({one.file for one in made}) < len(made):
            raise InternalError(f"{self.name}: two receipts name one file.")
        self.results.check_there(made)
        earlier = len(description.settled)
        return made[:earlier], made[earlier:]

    def ended_by_another(self, given: Input, owner: ReceiptStore) -> Applied | None:
        """Return the result if an older driver has ended the job meanwhile, else None.

        It is for a driver that failed, since the other one may have removed the files that it
        reads.
        """
        if (done := self.done(given)) is not None:
            owner.check_owner()
            self.results.sweep(owner.base)
        return done

    def _entries(self, extents: Mapping[str, Extent], owner: ReceiptStore) -> list[Entry]:
        """Return this driver's entries, after a check that they cover each input position once."""
        from flowctl.runtime.receipts import flaw, written

        entries = written(self.results.manifest.segments())
        owner.check_owner()  # now, as a newer driver's entries aren't for this one
        spans = {name: (extent.start, extent.stop) for name, extent in extents.items()}
        if problem := flaw(spans, entries):
            raise InternalError(
                f"{self.name}: {problem}.",
                remedy="Start the job again: it continues there. Please report this as a defect.",
            )
        return sorted(entries, key=lambda one: (one.partition, one.start))

    def _merged(
        self, made: Sequence[ResultFile], files: int, epoch: int, merge: Merge | None
    ) -> list[ResultFile]:
        shares = [[file.file for file in share] for share in shares_of(made, files)]
        if merge is not None:
            merged = list(merge(shares, epoch))
        else:
            place, name, schema = self.results.place, self.name, self.schema
            merged = [merge_files(place, name, schema, share, epoch=epoch) for share in shares]
        if total_rows(merged) != total_rows(made):
            raise InternalError(f"{self.name}: merging its files lost rows.")
        return merged

    def _applied(self, finished: Finished, report: Report | None) -> Applied:
        files = [self.results.place.path(file.file) for file in finished.files]
        nowhere = finished.rows_kept_nowhere
        return Applied(files, finished.rows, report is None, report, nowhere)

    def _check_apart(self, given: Input) -> None:
        """Refuse an ``out`` from which a resumed run would read its own results as input."""
        out = arrow_path(self.results.place.url)
        for path in given.paths:
            if f"{out}/".startswith(f"{arrow_path(path).rstrip('/')}/"):
                raise ConfigError(
                    "out",
                    f"{out} lies within the input {path}.",
                    remedy="Give a directory outside of the input.",
                )

    def _check_same(self, known: Description, given: Input) -> None:
        where = f"{self.name!r} in {self.results.place.url}"
        another = "Give another name or out"
        if known.schema != str(self.schema):
            raise ConfigError(
                "schema",
                f"{where} was begun with {_flat(known.schema)}, not {_flat(str(self.schema))}.",
                remedy=f"{another}, or the earlier schema.",
            )
        if known.columns != (None if given.columns is None else list(given.columns)):
            raise ConfigError(
                self.columns_are,
                f"{where} was begun with {known.columns}, not {given.columns}.",
                remedy=f"{another}, or the earlier {self.columns_are}.",
            )
        if self.keep_results:
            return
        if known.is_mixed:
            raise ConfigError(
                "fn",
                f"{where} holds results of several functions: keep_results=True was given.",
                remedy=f"{another}; or keep_results=True again, to have them as they are.",
            )
        if known.fn != self.code:
            raise ConfigError(
                "fn",
                f"{where} was begun with another function.",
                remedy=f"{another}; or keep_results=True, to keep the earlier function's results"
                " and go on with this one.",
            )
        self._check_uses(known, where)
        if known.source != given.source and not given.is_more_than(known):
            raise ConfigError(
                "df",
                f"{where} was begun with another DataFrame.",
                remedy=f"{another}; or keep_results=True, to keep the earlier results and go on.",
            )
        for file, mark in given.marks.items():
            if known.marks.get(file, mark) != mark:
                raise ConfigError(
                    "df",
                    f"{file} was written again since {where} was begun.",
                    remedy=f"{another}; or keep_results=True, to keep the earlier results.",
                )

    def is_another(self, known: Description) -> bool:
        """Whether the job was begun with another function, or with other values that it uses."""
        has_other_values = known.uses is not None and known.uses != self.uses
        return known.fn != self.code or has_other_values

    def _check_uses(self, known: Description, where: str) -> None:
        if known.uses is None:  # of an older version
            return
        now = self.uses
        names = known.uses.keys() | now.keys()
        changed = sorted(name for name in names if known.uses.get(name) != now.get(name))
        if changed:
            raise ConfigError(
                "fn",
                f"{where} was begun with another {', '.join(changed)}.",
                remedy="Give another name or out; or the earlier value; or keep_results=True, to"
                " keep the results that were made with it and go on with this one.",
            )


def described(job: Job, given: Input, copy: str = "") -> Description:
    """Return the description of a new ``job`` over ``given``, or over that in ``copy``."""
    return Description(
        name=job.name,
        run=secrets.token_hex(_RUN_BYTES),
        schema=str(job.schema),
        source=given.source,
        fn=job.code,
        uses=dict(job.uses),
        paths=list(given.paths),
        columns=None if given.columns is None else list(given.columns),
        copy=copy,
        marks=dict(given.marks),
        shape=given.shape,
    )


def next_round(
    known: Description, finished: Finished, *, paths: Sequence[str] = (), copy: str = ""
) -> Description:
    """Return the round after that of ``known``, which has ``finished``.

    ``paths`` come to its input; they are in the directory ``copy`` below the job's own.
    """
    return msgspec.structs.replace(
        known,
        paths=[*known.paths, *paths],
        round=known.round + 1,
        settled=finished.files,
        settled_partitions=list(known.files),
        copies=[*known.copies, *([copy] if copy else ())],
        redriven=[],
    )


def rows_of(path: str, rows: Sequence[int]) -> Any:
    """Return the ``rows`` of a Parquet file, by their numbers; raise :class:`SourceError`."""
    dataset = importlib.import_module("pyarrow.dataset")
    try:
        return dataset.dataset(path, format="parquet", partitioning=None).take(rows)
    except (OSError, arrow().ArrowException) as error:
        raise SourceError(
            f"{path} can't be read: {str(error).partition(chr(10))[0]}.",
            remedy="Restore the file: rows of it are letters that are marked to be done again.",
        ) from error


def _with_input(known: Description, given: Input) -> Description:
    own = [path for path in known.own_paths if path not in given.paths]
    return msgspec.structs.replace(
        known,
        source=given.source,
        paths=[*given.paths, *own],
        marks=dict(given.marks),
        shape=given.shape,
    )


def _flat(schema: str) -> str:
    return ", ".join(schema.splitlines())
