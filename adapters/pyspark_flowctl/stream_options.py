"""The options of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from flowctl.delivery.options import READ, checked, names_of, read_text
from flowctl.errors import ConfigError
from flowctl.ports import FlowProducer
from pyspark_flowctl.text_options import check_known, named_object

_ARGUMENT = "producer."
# Chunks of a batch per slot: a slow call then delays the batch by a quarter of a slot's time, while
# each chunk costs Spark some 50 ms.  Without process there are no calls.
_CHUNKS_PER_SLOT = 4
KNOWN = ("producer", "process", *names_of(READ), f"{_ARGUMENT}ARGUMENT")


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``readStream.format("flowctl")`` and its options, checked.  Picklable.

    ``producer`` names a class or function that returns a :class:`flowctl.FlowProducer`;
    ``arguments`` are passed to it.  ``process`` names a function of a batch that returns rows; with
    "" the records themselves are the rows.  The other options are described in docs/options.md.
    """

    producer: str
    arguments: dict[str, Any]
    process: str
    name: str | None
    redis: str | None
    target: str | None
    budget: str | None
    spend_max: str | None
    weight: float
    leave: float
    dead_letter: str | None
    fail_over: str | None
    target_batch_s: float
    trigger_s: float | None
    start_rows: int
    batch_rows_max: int
    tasks: int
    attempts_max: int
    call_timeout_s: float | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamOptions:
        """Return the parsed ``options``; raise :class:`ConfigError` that names a wrong one."""
        left = {name.lower(): text for name, text in options.items()}
        arguments = {
            name.removeprefix(_ARGUMENT): _value(left.pop(name))
            for name in [name for name in left if name.startswith(_ARGUMENT)]
        }
        producer, process = left.pop("producer", ""), left.pop("process", "")
        given = read_text(READ, left)
        check_known(list(left), KNOWN)
        made = cls(producer=producer, process=process, arguments=arguments, **checked(READ, given))
        made.check()
        return made

    def check(self) -> None:
        """Raise :class:`ConfigError` for options that can't be combined."""
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
    def chunks(self) -> int:
        """Into how many pieces a batch is cut at most."""
        return self.tasks * (_CHUNKS_PER_SLOT if self.process else 1)

    @property
    def job(self) -> str:
        """The job's name for spans and dead letters."""
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
    """Return the value of JSON (numbers, booleans, lists), else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
