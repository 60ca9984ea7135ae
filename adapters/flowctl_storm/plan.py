"""The parts of a topology as plain values, checked: no unknown source, no cycle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from flowctl.core.trees.settlement import DEFAULT_STREAM
from flowctl.errors import ConfigError, with_article

# Streams that a bolt declares, each with the fields of its values; None for undeclared fields.
Emits: TypeAlias = Mapping[str, Sequence[str | int] | None]
GroupingKind: TypeAlias = Literal["shuffle", "least_loaded", "fields", "direct", "all"]
# Groupings for which any bolt of the stage will do, so that one may take over another's inputs.
_SHARED: frozenset[str] = frozenset({"shuffle", "least_loaded"})
_NAME_MAX = 100  # it is part of each bolt's name, which people read in a table
_RESERVED = ":./ "  # separate a name from a partition, a bolt's number, a stream

# Partitions of the tuples by which the hub calls a bolt's on_tick and on_end.  No stage can have
# these names.
TICK_CALL: Final = ":tick"
END_CALL: Final = ":end"


def source_key(component: str, stream: str | None) -> str:
    """Return the name of the source: ``component`` with its ``stream``."""
    if stream is None or stream == DEFAULT_STREAM:
        return component
    return f"{component}/{stream}"


def component_of(source: str) -> str:
    """Return the component of a :func:`source_key`."""
    return source.partition("/")[0]


def stream_of(source: str) -> str:
    """Return the stream of a :func:`source_key`."""
    return source.partition("/")[2] or DEFAULT_STREAM


# An input's id is a rising number with the index of its source in the low bits (the source's index
# in its stage).  So a tuple may hold inputs of several sources, and the wire needs no other field
# for it.
_SOURCE_BITS = 8
SOURCES_MAX = 1 << _SOURCE_BITS


def input_id_of(number: int, source: int) -> int:
    """Return the id of input ``number`` from the source with index ``source`` in its stage."""
    return number << _SOURCE_BITS | source


def source_of(input_id: int) -> int:
    """Return the index of an input's source in its stage."""
    return input_id & (SOURCES_MAX - 1)


def task_of(bolt: str) -> int:
    """Return the task number of the bolt ``stage.number``."""
    return int(bolt.rpartition(".")[2]) - 1


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription of a stage to ``stream`` of ``component``; ``kind`` is the grouping."""

    component: str
    kind: GroupingKind
    stream: str = DEFAULT_STREAM
    fields: tuple[str | int, ...] = ()

    @property
    def source(self) -> str:
        """See :func:`source_key`."""
        return source_key(self.component, self.stream)


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One bolt's stage: ``count`` tasks of ``slots`` threads each.

    If ``is_manual``, its inputs may be held over several tuples.  ``emits`` are the streams that it
    declares, each with the fields of its values (None for undeclared fields), or None if it
    declares nothing.  ``has_end`` tells whether its bolts have ``on_end``.  ``tick_s`` is the
    interval of ``on_tick`` calls [s]; None for never.
    """

    name: str
    count: int
    slots: int
    is_manual: bool
    code: Any
    subscriptions: tuple[Subscription, ...]
    emits: Emits | None = None
    has_end: bool = False
    tick_s: float | None = None

    @property
    def is_keyed(self) -> bool:
        """Whether inputs are for a certain task, so that each task has a separate buffer."""
        kinds = {subscription.kind for subscription in self.subscriptions}
        return not kinds <= _SHARED or len(kinds) > 1

    @property
    def sources(self) -> list[str]:
        """The stage's sources, each once; an input's source is an index into them."""
        return list(dict.fromkeys(subscription.source for subscription in self.subscriptions))

    @property
    def bolts(self) -> list[str]:
        """The names of the stage's bolts, by task number."""
        return [f"{self.name}.{number}" for number in range(1, self.count + 1)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean …?" if one of ``known`` resembles ``name``, else ""."""
    from difflib import get_close_matches  # needed only for an error: workers need not load it

    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_name(field: str, name: Any, taken: Sequence[str]) -> None:
    """Raise :class:`ConfigError` for a name that can't be used, or is used already."""
    is_readable = (
        isinstance(name, str) and bool(name) and name.isprintable() and len(name) <= _NAME_MAX
    )
    if not is_readable or any(mark in name for mark in _RESERVED):
        raise ConfigError(
            field, f"{name!r} can't be a name.", remedy="Use letters, digits, '-' and '_'."
        )
    if name in taken:
        raise ConfigError(field, f"the name {name!r} is taken.", remedy="Give another name.")


def declared_emits(stage: str, given: Any) -> Emits | None:
    """Return the streams that a bolt declares to emit, checked."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(
            stage,
            f"emits: {with_article(type(given).__name__)} does not name streams and their fields.",
            remedy='Give a dict, as {"default": ("client", "path"), "bad": None}.',
        )
    for stream, fields in given.items():
        check_name(stage, stream, [])
        if isinstance(fields, str):
            raise ConfigError(
                stage, f"emits: {fields!r} is not a list of fields.", remedy=f"Give [{fields!r}]."
            )
    return {stream: None if of is None else tuple(of) for stream, of in given.items()}


def in_order(spouts: Sequence[str], stages: Sequence[StagePlan]) -> list[StagePlan]:
    """Return the stages ordered so that each comes after its sources.

    Raises :class:`ConfigError` for a stage that subscribes to nothing, or to a source that does not
    exist, for a spout without subscribers, and for a cycle: full stages of a cycle would wait for
    each other forever.
    """
    known = {*spouts, *(stage.name for stage in stages)}
    emits = {stage.name: stage.emits for stage in stages}
    for stage in stages:
        if not stage.subscriptions:
            raise ConfigError(
                stage.name, "has no source.", remedy='Name its source: .shuffle("lines").'
            )
        if len(stage.sources) > SOURCES_MAX:
            raise ConfigError(
                stage.name,
                f"subscribes to more than {SOURCES_MAX} sources.",
                remedy="Put another bolt in between.",
            )
        for subscription in stage.subscriptions:
            if subscription.component not in known:
                raise ConfigError(
                    stage.name,
                    f"there is no {subscription.component!r} to subscribe to."
                    + did_you_mean(subscription.component, known),
                    remedy="Known: " + ", ".join(sorted(known)) + ".",
                )
            if subscription.component in spouts:
                _check_spout(stage.name, subscription)
            else:
                _check_emitted(stage.name, subscription, emits[subscription.component])
    read = {subscription.component for stage in stages for subscription in stage.subscriptions}
    for spout in spouts:
        if spout not in read:  # its records would count as done without having reached a bolt
            raise ConfigError(
                spout,
                "no bolt subscribes to this spout.",
                remedy=f'Add .shuffle("{spout}") to one.',
            )
    return _sorted(set(spouts), list(stages))


def _check_spout(stage: str, wanted: Subscription) -> None:
    """Refuse other streams of a spout than the default one, and direct grouping from it."""
    if wanted.stream != DEFAULT_STREAM:
        raise ConfigError(
            stage,
            f"{wanted.component!r} is a spout, which emits only on the default stream"
            f" (stream {wanted.stream!r} is wanted).",
            remedy="Leave out stream=, or put a bolt between.",
        )
    if wanted.kind == "direct":
        raise ConfigError(
            stage,
            f"{wanted.component!r} is a spout and does not emit to tasks: nobody would receive"
            " anything.",
            remedy="Use another grouping, or put a bolt between that emits to tasks.",
        )


def _check_emitted(
    stage: str,
    wanted: Subscription,
    emits: Emits | None,
) -> None:
    """Check that a bolt's declaration has the streams and fields that others subscribe to.

    A bolt that declares nothing is not checked.
    """
    if emits is None:
        return
    if wanted.stream not in emits:
        raise ConfigError(
            stage,
            f"{wanted.component!r} does not emit on stream {wanted.stream!r}."
            + did_you_mean(wanted.stream, emits),
            remedy="It declares " + ", ".join(map(repr, emits)) + ".",
        )
    fields = emits[wanted.stream]
    if fields is None:
        return
    for field in wanted.fields:
        if field not in fields:
            on = "" if wanted.stream == DEFAULT_STREAM else f" on {wanted.stream!r}"
            raise ConfigError(
                stage,
                f"grouped by {field!r}, which {wanted.component!r} does not emit{on}."
                + did_you_mean(str(field), map(str, fields)),
                remedy="It has " + ", ".join(map(repr, fields)) + ".",
            )


def _sorted(done: set[str], left: list[StagePlan]) -> list[StagePlan]:
    ordered: list[StagePlan] = []
    while left:
        ready = [s for s in left if all(sub.component in done for sub in s.subscriptions)]
        if not ready:
            names = ", ".join(stage.name for stage in left)
            raise ConfigError("topology", f"{names} form a cycle.", remedy="Remove the cycle.")
        ordered += ready
        done |= {stage.name for stage in ready}
        left = [stage for stage in left if stage not in ready]
    return ordered
