"""Letters of earlier runs that ``flowctl dlq redrive`` has marked: written before new rows.

Each redrive is a partition of its own, with positions of its own, so a sink that knows rows by
their span takes a letter once, however often Spark runs the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec

from flowctl.core.letters import Letter, redrive_partition
from flowctl.delivery.delivery import Delivery
from flowctl.delivery.pacers import Pacer
from flowctl.delivery.plan import Plan, Where
from flowctl.delivery.tally import Tally
from flowctl.logs import ModuleLogger
from flowctl.ports import RedrivableDeadLetter

_log = ModuleLogger("pyspark_flowctl")


def tell_unnamed(plan: Plan, target: str) -> None:
    """Say that letters wait: two jobs without names that call one target can't be told apart."""
    if isinstance(plan.dead_letter, RedrivableDeadLetter) and plan.dead_letter.to_redrive(target):
        _log.warning(
            "letters_wait",
            target=target,
            remedy="They are marked for redrive, but may be another job's rows: give each job that"
            " calls this target a name=.",
        )


def redrive(plan: Plan, job: str, pacer: Pacer, schema: str | None) -> Tally:
    """Write the letters of ``job`` that are marked; return what became of them.

    One that fails again stays a letter.  ``schema``: Spark's, as JSON; None: nobody knows.  Raises
    what :meth:`Delivery.run` does, and ``OSError``: then the letters stay marked.
    """
    total = Tally()
    port = plan.dead_letter
    if not isinstance(port, RedrivableDeadLetter):
        return total
    # Their losses were counted when they became letters; several bad ones in a row are likely.
    own = msgspec.structs.replace(plan, fail_over=None, gave_up_in_a_row_max=inf)
    kind = None if schema is None else _struct(schema)
    for number, letters in _by_redrive(port, job).items():
        places = sorted(letters)
        where = Where(job, redrive_partition(number), place=places.__getitem__)
        rows = (_row(letters[place].value, kind) for place in places)
        total.add(Delivery(own, where, pacer).run(rows))
        port.on_redriven(job, list(letters.values()))
    return total


def _by_redrive(port: RedrivableDeadLetter, job: str) -> Mapping[int, dict[int, Letter]]:
    found: dict[int, dict[int, Letter]] = {}
    for letter in port.to_redrive(job):
        if letter.redrive is not None:
            number, position = letter.redrive
            found.setdefault(number, {})[position] = letter
    return dict(sorted(found.items()))


def _struct(schema: str) -> Any:
    from pyspark.sql.types import _parse_datatype_json_string

    return _parse_datatype_json_string(schema)


def _row(value: Any, kind: Any) -> Any:
    """Return the Row that ``letter_row`` made a dict of.

    Letters of older versions have maps as dicts: these are Rows if nobody knows their type.
    """
    from pyspark.sql.types import ArrayType, MapType, Row, StructType

    if isinstance(value, dict):
        if isinstance(kind, MapType):
            return {key: _row(part, kind.valueType) for key, part in value.items()}
        types = {f.name: f.dataType for f in kind.fields} if isinstance(kind, StructType) else {}
        row = Row(*value)(*(_row(part, types.get(name)) for name, part in value.items()))
        return row
    if _is_map(value):
        of_key, of_part = (
            (kind.keyType, kind.valueType) if isinstance(kind, MapType) else (None, None)
        )
        return {_row(key, of_key): _row(part, of_part) for key, part in value}
    if isinstance(value, list):
        element = kind.elementType if isinstance(kind, ArrayType) else None
        return [_row(part, element) for part in value]
    return value


def _is_map(value: Any) -> bool:
    """Whether ``letter_row`` may have made it of a map; letters of other jobs hold any value."""
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in value
    )
