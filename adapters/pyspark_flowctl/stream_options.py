"""The options of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from flowctl.delivery.batch_rows import START_ROWS
from flowctl.delivery.plan import check_numbers, check_whole, checked_timeout
from flowctl.errors import ConfigError
from flowctl.ports import FlowProducer
from pyspark_flowctl.options import check_known, named_object, number

_ARGUMENT = "producer."
_TEXTS = ("producer", "process", "name", "redis", "target", "dead_letter", "fail_over")
_WHOLES = ("start_rows", "rows_max", "slots", "attempts_max")
_NUMBERS = ("target_batch_s", "trigger_s", "call_timeout_s")
KNOWN = (*_TEXTS, *_WHOLES, *_NUMBERS, f"{_ARGUMENT}ARGUMENT")


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``readStream.format("flowctl")`` and its options, checked.  Picklable.

    ``producer`` names a class or function that returns a :class:`flowctl.FlowProducer`;
    ``arguments`` are passed to it.  ``process`` names a function of a batch that returns rows;
    "": the records themselves are the rows.  ``target`` paces it ("": no limit is shared).
    ``target_batch_s``: how long a batch should take.  ``trigger_s``: the interval of
    ``Trigger.ProcessingTime``, 0 without.  ``start_rows``: of the first batch; ``rows_max``: of
    any.  ``slots``: how many tasks run at once.
    ``call_timeout_s``: how long a call of ``process`` may take.
    """

    producer: str
    arguments: dict[str, Any] = {}
    process: str = ""
    name: str = ""
    redis: str = ""
    target: str = ""
    dead_letter: str = ""
    fail_over: str = ""
    # Spark costs half a second a batch: 5 % of this.
    target_batch_s: float = 10.0
    trigger_s: float = 0.0
    start_rows: int = START_ROWS
    # All of them are in the planner's memory: 100 MB where a record has 1 kB.
    rows_max: int = 100_000
    slots: int = 4
    attempts_max: int = 5
    call_timeout_s: float | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamOptions:
        """Return what ``options`` say; raise :class:`ConfigError` that names a wrong one."""
        left = {name.lower(): text for name, text in options.items()}
        arguments = {
            name.removeprefix(_ARGUMENT): _value(left.pop(name))
            for name in [name for name in left if name.startswith(_ARGUMENT)]
        }
        given: dict[str, Any] = {name: left.pop(name) for name in _TEXTS if name in left}
        for names, kind in ((_WHOLES, int), (_NUMBERS, float)):
            given |= {name: number(name, left.pop(name), kind) for name in names if name in left}
        check_known(list(left), KNOWN)
        given.setdefault("producer", "")
        made = cls(arguments=arguments, **given)
        made.check()
        return made

    def check(self) -> None:
        """Raise :class:`ConfigError` for what can't work."""
        check_whole(
            start_rows=self.start_rows,
            rows_max=self.rows_max,
            slots=self.slots,
            attempts_max=self.attempts_max,
        )
        check_numbers(target_batch_s=self.target_batch_s)
        checked_timeout(self.call_timeout_s)
        if self.trigger_s:
            check_numbers(trigger_s=self.trigger_s)
        named_object("producer", self.producer, "what makes a producer")
        if self.process:
            named_object("process", self.process, "a function of a batch")
        if self.redis and not self.name:
            raise ConfigError(
                "name",
                "is missing: with redis, progress is saved under it.",
                remedy="Name the stream: .option('name', 'orders').",
            )

    @property
    def job(self) -> str:
        """Under which name spans and dead letters are kept."""
        return self.name or self.target or "stream"

    def make_producer(self) -> FlowProducer:
        """Return a new producer."""
        make = named_object("producer", self.producer, "what makes a producer")
        try:
            made = make(**self.arguments)
        except TypeError as error:
            raise ConfigError(
                "producer",
                f"{self.producer} can't be called with {sorted(self.arguments)}: {error}.",
                remedy="Give its arguments as options: .option('producer.path', 'logs/*.log').",
            ) from error
        if not isinstance(made, FlowProducer):
            raise ConfigError(
                "producer",
                f"{self.producer} returned {type(made).__name__}, which is not a producer.",
                remedy="It needs partitions, open, poll and close (flowctl.FlowProducer).",
            )
        return made


def _value(text: str) -> Any:
    """Return numbers, booleans and lists as such; what is not JSON is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
