"""The parts that a spout is given: what has one obvious meaning is accepted, the rest is refused by
name."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from flowctl import disk
from flowctl.adapters import dead_letter_of, load_adapter
from flowctl.config import Settings, settings_of
from flowctl.core.window import POLICIES
from flowctl.errors import ConfigError
from flowctl.failure.callables import refuse_async
from flowctl.instrumentation.text import REDIS_URL_VARIABLE
from flowctl.logs import ModuleLogger
from flowctl.ports import Bolts, CheckpointStore, DeadLetter, FlowProducer, SpoutListener
from flowctl.range_ports import RangeProducer
from flowctl.runtime.file_store import DIRECTORY_VARIABLE, FileCheckpointStore
from flowctl.runtime.iterables import Records, remedy_for_frame
from flowctl.runtime.memory_store import MemoryCheckpointStore

if TYPE_CHECKING:
    from flowctl.instrumentation.snapshot import Report, View
from flowctl.instrumentation.views import Page

_NEEDED: Final = ("partitions", "open", "poll", "close")
PRODUCER_CALLS: Final = (*_NEEDED, "progress", "attach", "keep")
_RANGE_CALLS: Final = ("extents", "reader", "close")
_BOLTS_CALLS: Final = ("listen_host", "start", "stop")
_STORE_CALLS: Final = ("acquire", "load", "save", "close")
_STORE_NEEDED: Final = (*_STORE_CALLS, "jobs", "rewind", "clear")
_REDIS_SCHEMES: Final = ("redis://", "rediss://", "unix://")
_DEAD_LETTER_NEEDED: Final = ("dead_letter", "close")
_DEAD_LETTER_CALLS: Final = (*_DEAD_LETTER_NEEDED, "dead_letter_many", "open_letters")
_LISTENER_CALLS: Final = ("on_open", "on_emit", "on_ack", "on_retry", "on_max_retry_reached")
_log = ModuleLogger("flowctl")
_NAME_MAX: Final = 200  # still readable as a file name or a Redis key


class RunnableJob(ABC):
    """What ``flowctl run`` takes: its parts may be replaced before :meth:`run`."""

    name: str
    producer: FlowProducer | RangeProducer
    bolts: Bolts
    checkpoint: CheckpointStore
    settings: Settings
    dead_letter: DeadLetter | None
    #: False: it has several kinds of bolts with a count each, so there is no ``--bolts``.
    has_one_count: bool = True

    def __repr__(self) -> str:
        return repr_of(self, self.producer, self.bolts, self.checkpoint)

    @abstractmethod
    def run(
        self,
        *,
        view: View | Page | Literal["auto", "live", "plain", "quiet", "off", "page"] = "auto",
        resume_hint: str | None = None,
        report_path: str | Path | None = None,
        deadline_s: float | None = None,
    ) -> Report:
        """Run to the end of the input; return the report."""


def check_name(name: object) -> None:
    """Raise :class:`ConfigError` for a ``name`` that can't name a job."""
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX or not name.isprintable():
        raise ConfigError(
            "name", f"{name!r} can't name a job.", remedy="Use 1 to 200 printable characters."
        )


def check_parts(job: RunnableJob) -> None:
    """Raise :class:`ConfigError` for parts that can't be used; accept a list, a URL, a dict."""
    job.producer = source_of(job.producer)
    job.bolts = bolts_of(job.bolts)
    job.checkpoint = store_of(job.checkpoint)
    job.dead_letter = dead_letter_of(job.dead_letter)
    check_dead_letter(job.dead_letter)
    job.settings = settings_of(job.settings)
    load_policy(job.settings)


def load_policy(settings: Settings) -> None:
    """Load the window policy if the lab has it; :class:`ConfigError` if the lab is not
    installed.
    """
    if settings.window.policy not in POLICIES:
        load_adapter("flowctl_lab.baselines", "lab")


def check_dead_letter(given: DeadLetter | None) -> None:
    """Raise :class:`ConfigError` for an object that keeps no letters, or has coroutines, which
    would never be awaited.
    """
    if given is None:
        return
    refuse_async(given, _DEAD_LETTER_CALLS, "dead_letter")
    _refuse_class("dead_letter", given)
    if missing := _lacks(given, _DEAD_LETTER_NEEDED):
        raise ConfigError(
            "dead_letter",
            f"{kind_of(given)} is not a dead letter: {missing}.",
            remedy="Give a directory, such as dead_letter='.flowctl/dead-letters'.",
        )


def check_listener(given: SpoutListener | None) -> None:
    """Raise :class:`ConfigError` for an object that is no listener, or has coroutines, which would
    never be awaited.
    """
    if given is None:
        return
    refuse_async(given, _LISTENER_CALLS, "listener")
    _refuse_class("listener", given)
    if missing := _lacks(given, _LISTENER_CALLS):
        raise ConfigError(
            "listener",
            f"{kind_of(given)} is not a listener: {missing}.",
            remedy="Give an object with the methods of flowctl.SpoutListener.",
        )


def source_of(given: Any) -> FlowProducer | RangeProducer:
    """Like :func:`producer_of`; also takes a source that the bolts read themselves."""
    if not isinstance(given, type) and isinstance(given, RangeProducer):
        refuse_async(given, _RANGE_CALLS, "producer")
        return given
    return producer_of(given)


def refuse_ranges(given: Any, field: str) -> None:
    """Raise :class:`ConfigError` for a source that the bolts read themselves."""
    if not isinstance(given, FlowProducer) and isinstance(given, RangeProducer):
        raise ConfigError(
            field,
            f"{kind_of(given)} is read by the bolts, which only FlowControlSpout supports yet.",
            remedy="Use FlowControlSpout, or a source by value: TextLines, ParquetRows,"
            " KafkaTopics.",
        )


def producer_of(given: Any, field: str = "producer") -> FlowProducer:
    """Return ``given``, or :class:`Records` of an iterable or a generator function.

    Raises :class:`ConfigError` for anything else, which names ``field`` and what is missing.
    """
    refuse_async(given, PRODUCER_CALLS, field)
    _refuse_class(field, given)
    if isinstance(given, FlowProducer):
        return given
    refuse_ranges(given, field)
    if (frame := remedy_for_frame(given)) is not None:
        raise ConfigError(field, f"a {frame[0]} is not a producer.", remedy=frame[1])
    if isinstance(given, str | bytes | os.PathLike):
        raise ConfigError(
            field,
            f"{kind_of(given)} is not a producer.",
            remedy="For the lines of files: flowctl_files.TextLines(path).",
        )
    # An object that can be polled was meant as a producer, even if it can be iterated as well.
    if not hasattr(given, "poll") and (
        isinstance(given, Iterable) or inspect.isgeneratorfunction(given)
    ):
        try:
            return Records(given)
        except ConfigError as error:
            problem = error.problem.removeprefix(f"{error.field}: ")
            raise ConfigError(field, problem, remedy=error.remedy) from None
    raise ConfigError(
        field,
        f"{kind_of(given)} is not a producer: {_lacks(given, _NEEDED)}.",
        remedy="Give a source such as flowctl_files.TextLines, a list or flowctl.Records(values),"
        " or an object with the methods of flowctl.FlowProducer.",
    )


def bolts_of(given: Any) -> Bolts:
    """Return ``given``; raise :class:`ConfigError` for a function, or anything else that is not
    bolts."""
    refuse_async(given, _BOLTS_CALLS, "bolts")
    _refuse_class("bolts", given)
    missing = _lacks(given, (*_BOLTS_CALLS, "count"))
    if missing:
        name = getattr(given, "__name__", None) if callable(given) else None
        shown = name if isinstance(name, str) and name.isidentifier() else "load"
        what = "a function" if name else kind_of(given)
        raise ConfigError(
            "bolts",
            f"{what} does not run bolts: {missing}.",
            remedy=f"Give LocalBolts({shown}, count=4) or SparkBolts({shown}).",
        )
    return cast("Bolts", given)


def store_of(given: Any) -> CheckpointStore:
    """Return ``given``, the store of a Redis URL, or :func:`default_store` for None.

    The adapter for Redis is imported only for a URL.
    """
    if given is None:
        return default_store()
    if isinstance(given, str):
        if not given.startswith(_REDIS_SCHEMES):
            raise ConfigError(  # not quoted: it may hold a password
                "checkpoint",
                f"the text does not begin with one of {', '.join(_REDIS_SCHEMES)}.",
                remedy='Example: checkpoint="redis://host:6379/0"',
            )
        given = redis_store(given)
    refuse_async(given, _STORE_CALLS, "checkpoint")
    _refuse_class("checkpoint", given)
    if missing := _lacks(given, _STORE_NEEDED):
        raise ConfigError(
            "checkpoint",
            f"{kind_of(given)} is not a checkpoint store: {missing}.",
            remedy='Give a URL such as "redis://host:6379/0", or'
            " flowctl.FileCheckpointStore(directory).",
        )
    return cast("CheckpointStore", given)


def default_store() -> CheckpointStore:
    """Return the store of the Redis in FLOWCTL_REDIS_URL; without it files on this machine.

    In memory where such files can't be written, which is logged: a later run then begins anew.
    `flowctl checkpoint` looks in the same place.  Raises :class:`ConfigError` if
    FLOWCTL_CHECKPOINTS names a place that can't be used.
    """
    if url := os.environ.get(REDIS_URL_VARIABLE):
        return redis_store(url)
    store = FileCheckpointStore()
    if why := disk.why_not_writable(store.place):
        if os.environ.get(DIRECTORY_VARIABLE):
            raise ConfigError(DIRECTORY_VARIABLE, f"{why}.", remedy="Name another directory.")
        _log.warning("checkpoint_in_memory", why=why, remedy=f"set {DIRECTORY_VARIABLE}")
        return MemoryCheckpointStore(caution=why)
    return store


def redis_store(url: str) -> CheckpointStore:
    """Return the store of the Redis at ``url``; its adapter is imported for that."""
    store: CheckpointStore = load_adapter("flowctl_redis", "redis").RedisCheckpointStore(url)
    return store


def _refuse_class(field: str, given: Any) -> None:
    if isinstance(given, type):
        raise ConfigError(
            field,
            f"{given.__name__} is a class.",
            remedy=f"Give an instance: {given.__name__}(…).",
        )


def kind_of(given: Any) -> str:
    """Return the type of ``given`` for a message: the value may be long, or secret."""
    return "None" if given is None else type(given).__name__


def repr_of(job: Any, *parts: object) -> str:
    """Return a line about ``job``, with its name and the kinds of its parts."""
    return f"{type(job).__name__}({', '.join([repr(job.name), *map(kind_of, parts)])})"


def _lacks(given: Any, methods: Iterable[str]) -> str:
    """Return which of ``methods`` are missing, as text; "" if none is."""
    missing = [
        f"{name}()" if name != "count" else name for name in methods if not hasattr(given, name)
    ]
    return f"it has no {', '.join(missing)}" if missing else ""
