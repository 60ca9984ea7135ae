"""Numbers that tests write into a table of a SqlSink, also from many threads at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl_sql import SqlSink

_THREADS = 8
_NUMBERS = 300


def write_numbers(
    sink: SqlSink, first: int, last: int, *, epoch: int = 1, part: str = "p", done: int = -1
) -> Any:
    """Write ``first`` to ``last - 1`` as a bolt's batch; all up to ``done`` is known as acked."""
    records = [Record((n, 0), f"línea {n}") for n in range(first, last)]
    acked_through = None if done < 0 else (done, 0)
    span = Span("job", part, records[0].position, records[-1].position, epoch, acked_through)
    batch = Batch(records, span, bolt="b", attempt=1)
    rows = [{"part": part, "number": r.position[0], "line": r.value} for r in batch]
    return sink.write(rows, batch=batch)


def write_from_many_threads(
    sink: SqlSink, write: Callable[[int, int, str], None], *, times: int
) -> list[int]:
    """Race for first rows, first epochs and tables; then ranges of p and q that overlap.

    ``write`` writes ``first`` to ``last - 1`` into a part.  Return what is then to be in each part.
    """
    errors: list[BaseException] = []
    begin = threading.Barrier(_THREADS)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            begin.wait()
            for _ in range(times):
                first = rng.randrange(_NUMBERS)
                last = min(first + rng.randrange(1, 40), _NUMBERS)
                write(first, last, rng.choice("pq"))
            for part in "pq":
                write(0, _NUMBERS, part)
        except BaseException as error:
            errors.append(error)
        finally:
            sink.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    return list(range(_NUMBERS))
