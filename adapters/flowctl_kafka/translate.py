"""Turn a Kafka message into a record's value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from flowctl.arguments import check_arguments
from flowctl.core.records import NOTHING

if TYPE_CHECKING:
    from confluent_kafka import Message

# The result is sent to bolts: a value that arrives unchanged (flowctl.wire.values), or NOTHING for
# a message that needs no processing, whose offset then counts as done at once.
Translate: TypeAlias = Callable[["Message"], Any]


class Routed(msgspec.Struct, frozen=True, array_like=True):
    """A value and the stream that it goes to; ``process`` gets it as ``[stream, value]``."""

    stream: str
    value: Any


def value_of(message: Message) -> Any:
    """Return the message's value as bytes; None for a tombstone of a compacted topic."""
    return message.value()


def key_and_value(message: Message) -> Any:
    """Return ``[key, value]``, both bytes or None."""
    return [message.key(), message.value()]


@check_arguments("translators", "otherwise")
def by_topic(translators: Mapping[str, Translate], *, otherwise: Translate = value_of) -> Translate:
    """Return a translator that uses the topic's own, or ``otherwise`` for other topics."""
    known = dict(translators)

    def translate(message: Message) -> Any:
        return known.get(message.topic() or "", otherwise)(message)

    return translate


def translated(translate: Translate, message: Message) -> Any:
    """Return the value to put into the record."""
    value = translate(message)
    if isinstance(value, Routed):
        return NOTHING if value.value is NOTHING else [value.stream, value.value]
    return value
