"""Process rows on the workers: one Parquet file of new rows per batch, and its receipt.

Needs pyarrow.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.errors import UnrunnableError
from flowctl_apply._places import LocalPlace, Place
from flowctl_apply._results import Description, ResultFile, decoded, new_name
from flowctl_apply._rows import Shape, arrow, call, table_of

if TYPE_CHECKING:
    from flowctl.delivery.pacers import RowTargets
    from flowctl.pacing.api import Paced

# Seconds of work per batch.  Each batch makes a file, and the usual .15 s would make very many
# small ones.  A kill repeats up to this much work per slot, less at a job's beginning: see
# range_pace.py.
_BATCH_S = 2.0


class Target(NamedTuple):
    """Where rows go: the place, and the job.

    ``description`` is a file that the driver wrote there and that contains ``run``: a worker that
    can't read it has another place under this name, where its results would be lost.
    """

    place: Place
    job: str
    description: str
    run: str


class Rows:
    """The rows of a result file: those that ``fn`` returned, as an Arrow ``schema`` has them."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    def table(self, made: Any, batch: Batch) -> Any:
        """Return the result ``made`` of ``batch`` as a ``pyarrow.Table``: see ``table_of``."""
        return table_of(made, self.schema)

    def explained(self, _: str = "fn") -> contextlib.AbstractContextManager[None]:
        """Surround a call of ``fn``, or of another function, to explain an error that it raises."""
        return contextlib.nullcontext()


class RowWriter:
    """Calls ``fn``, writes its rows, and returns the receipt.  Threads may share it."""

    batch_s = _BATCH_S
    known_as = "fn"  # the author's name for it, in errors

    def __init__(
        self,
        fn: Callable[..., Any],
        shape: Shape,
        rows: Rows,
        target: Target,
        paced: Paced | RowTargets | None = None,
    ) -> None:
        self.__wrapped__ = fn  # so that its module travels to the workers
        self._shape = shape
        self._paced = paced
        self._form = rows
        self._target = target
        self._is_checked = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        # This object has arrived on a worker.
        self.__dict__.update(state)
        self.warm_up()

    def warm_up(self) -> None:
        """Take slow steps before the first batch: pyarrow imports pandas at its first array.

        That takes .3 s of CPU, and seconds on a busy machine.  If this time counted for the first
        batch, of eight records, the next batches would begin at one record and double from there,
        each a file.
        """
        with contextlib.suppress(ImportError):  # the first batch reports the missing package
            arrow().array([None])
            encoded(self._form.schema.empty_table())

    def __call__(self, batch: Batch) -> bytes:
        """Write the rows that ``fn`` makes of ``batch``; return their receipt."""
        self._check_place()
        made = []
        for rows, part in self._calls(batch):
            with part.counted():
                made.append(rows(part))
        return self._keep(_joined(made), batch)

    def _calls(self, batch: Batch) -> Iterator[tuple[Callable[[Batch], Any], Batch]]:
        """Yield what to call for which part of ``batch``."""
        if self._paced is None:
            yield self._rows, batch
        elif callable(self._paced):
            yield self._paced(self._rows), batch
        else:
            found: dict[str, list[int]] = {}
            for index, record in enumerate(batch):  # where one has no target, it is known which
                with self._form.explained("target"):
                    name = self._paced.name(record.value)
                found.setdefault(name, []).append(index)
            for name, indices in found.items():
                yield self._paced.paced(name)(self._rows), batch.part(indices, f"@{name}")

    def _rows(self, batch: Batch) -> Any:
        """Return the rows: one call for a limit, including the rows that a generator makes."""
        with self._form.explained():
            return self._form.table(call(self.__wrapped__, self._shape, batch), batch)

    def _keep(self, table: Any, batch: Batch) -> bytes:
        if not table.num_rows:
            return msgspec.json.encode(ResultFile("", 0, 0))
        data = encoded(table)
        target = self._target
        name = new_name(target.job, batch, run=target.run, rows=table.num_rows)
        with batch.in_sink():
            target.place.put(name, data)
        return msgspec.json.encode(ResultFile(name, table.num_rows, len(data)))

    def _check_place(self) -> None:
        if self._is_checked:
            return
        target = self._target
        try:
            data = target.place.get(target.description)
            seen = decoded(target.description, data, Description, where=target.place.url).run
        except FileNotFoundError:
            seen = None
        if seen is None:
            raise _unshared(target.place)
        if seen != target.run:
            raise _begun_elsewhere(target)
        self._is_checked = True


class AsyncRowWriter(RowWriter):
    """Like :class:`RowWriter`, for an ``async def``."""

    async def __call__(self, batch: Batch) -> bytes:  # type: ignore[override]
        """Write the rows that ``fn`` makes of ``batch``; return their receipt."""
        self._check_place()
        made = []
        for rows, part in self._calls(batch):
            with part.counted():
                made.append(await rows(part))
        return self._keep(_joined(made), batch)

    async def _rows(self, batch: Batch) -> Any:
        with self._form.explained():
            return self._form.table(await call(self.__wrapped__, self._shape, batch), batch)


def _joined(tables: Sequence[Any]) -> Any:
    return tables[0] if len(tables) == 1 else arrow().concat_tables(tables)


def encoded(table: Any) -> bytes:
    """Return ``table`` as a Parquet file."""
    sink = arrow().BufferOutputStream()
    importlib.import_module("pyarrow.parquet").write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _begun_elsewhere(target: Target) -> UnrunnableError:
    return UnrunnableError(
        "out",
        f"{target.place.url} has the notes of another run of {target.job}, which began at the same"
        " time.",
        remedy="Let that one end: it has all results. If there is none, a worker"
        f" ({socket.gethostname()}) sees another directory there than the driver.",
    )


def _unshared(place: Place) -> UnrunnableError:
    local = isinstance(place, LocalPlace)
    return UnrunnableError(
        "out",
        f"{place.url} on {socket.gethostname()} is not what the driver sees there.",
        remedy="Give a directory that driver and workers mount, or an object store (s3://…)."
        if local
        else "Check that the workers reach the same store, with the same endpoint and region.",
    )
