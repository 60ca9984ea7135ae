"""Settings of a run: those of the core and of the runtime, as one typed tree.

``Settings().with_overrides({"tuple.records_max": 500})`` does what ``--set`` does.  Those that
users set are in docs/settings.md; those that only experiments change begin with ``lab.``
(docs/dev/lab.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from flowctl.core.settings import IS_LAB, CoreSettings, Lab, LongSeconds, Seconds, Section
from flowctl.errors import ConfigError, with_article
from flowctl.prepared import prepare

CountOrZero = Annotated[int, msgspec.Meta(ge=0)]
# Upper limit of every wait between two checks: a minute is far above any use, and no thread's wait
# overflows.
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=60_000)]
Microseconds = Annotated[int, msgspec.Meta(ge=0, le=60_000_000)]
WaitStrategyName = Literal["blocking", "progressive", "park"]

_LAB: Final = "lab."
# What was a setting and is none: where its number and its reason are.
CONSTANTS: Final = {
    "listen.frame_bytes_max": "FRAME_BYTES_MAX, 256 MiB, in flowctl/wire/codec.py",
    "retry.jitter_share": "_JITTER_SHARE, 0.5, in flowctl/core/retry.py",
    "timeout.suspect_s": "one heartbeat, in flowctl/core/settings.py",
    "window.threshold_ratio": "_THRESHOLD_RATIO, 2, in flowctl/core/window/aiad.py",
}


LearnedUse: TypeAlias = Literal["keep", "forget", "off"]


class CheckpointSettings(Section, frozen=True, kw_only=True):
    """When the checkpoint is saved, and whether a run begins with what the last one learned."""

    # A kill repeats at most what was acked in this time; a save costs about 1 ms.
    interval_s: Seconds = 0.5
    # "keep": a run begins with what the last one learned of costs.  "forget": it begins knowing
    # nothing, as once the code of process has changed, and keeps what it learns.  "off": neither.
    learned: LearnedUse = "keep"


class ListenSettings(Section, frozen=True, kw_only=True):
    """Where the spout listens for its bolts."""

    # "redis": bolts that can't reach the driver connect through the checkpoint's Redis.  Not the
    # default: messages take twice as long, and the driver notices a dead bolt only by its silence.
    via: Literal["tcp", "redis"] = "tcp"
    # None: loopback for local bolts and local Spark masters, else the driver's host.
    host: str | None = None
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    # How many ports from ``port`` on are tried: one for each driver of a machine behind a firewall.
    port_range: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 1
    # The name that bolts connect to, if it differs from ``host`` (NAT, Spark Connect).
    advertise: str | None = None
    # "auto": TLS exactly when the host is not loopback.
    tls: Literal["auto", "on", "off"] = "auto"


class StartSettings(Section, frozen=True, kw_only=True):
    """How long a run with work to do waits while no bolt is connected [s]."""

    # A cold Spark executor with 64 Arrow workers took 42 s (measured); a bit more than twice that.
    bolts_timeout_s: LongSeconds = 120.0


class WaitSettings(Section, frozen=True, kw_only=True):
    """How a loop waits when it has nothing to do; for what each level does, see
    ``waiting/strategies.py``.

    ``spout``: the sender has nothing to send; ``bolt``: a bolt has nothing to take;
    ``backpressure``: all windows are full, or a bolt's connection takes no more.  ``blocking``
    waits until it is woken; ``progressive`` uses level1_count turns without waiting, level2_count
    turns of the shortest wait there is, then sleeps level3_sleep_ms at a time; ``park`` waits
    park_us.
    """

    # All loops are woken when there is work; for the cost of polling see ADR 11.
    spout_strategy: Lab[WaitStrategyName] = "blocking"
    # The numbers of the requirements.  A spout that emitted nothing sleeps at once: its source was
    # just asked.
    spout_level1_count: Lab[CountOrZero] = 0
    spout_level2_count: Lab[CountOrZero] = 0
    spout_level3_sleep_ms: Lab[Milliseconds] = 1
    # Python adds some 80 us, so a smaller value would gain nothing.  0: spin.
    spout_park_us: Lab[Microseconds] = 100
    # A bolt's next tuple is often under way: check again at once, then every 80 us for some 80 ms.
    bolt_strategy: Lab[WaitStrategyName] = "blocking"
    bolt_level1_count: Lab[CountOrZero] = 1
    bolt_level2_count: Lab[CountOrZero] = 1000
    bolt_level3_sleep_ms: Lab[Milliseconds] = 1
    bolt_park_us: Lab[Microseconds] = 100
    backpressure_strategy: Lab[WaitStrategyName] = "blocking"
    backpressure_level1_count: Lab[CountOrZero] = 1
    backpressure_level2_count: Lab[CountOrZero] = 1000
    backpressure_level3_sleep_ms: Lab[Milliseconds] = 1
    backpressure_park_us: Lab[Microseconds] = 100


class CallSettings(Section, frozen=True, kw_only=True):
    """How long a call of ``process`` may take."""

    # None: as long as it takes.  Nobody but the job's author knows what is too long: a call of a
    # model may take days.  What takes longer than 30 s is told in any case.
    timeout_s: LongSeconds | None = None


class MetricsSettings(Section, frozen=True, kw_only=True):
    """What the tasks of a topology report about themselves, and where Prometheus finds a run."""

    # Storm's topology.builtin.metrics.bucket.size.secs.  None: nothing is counted.
    interval_s: LongSeconds | None = 60.0
    # Storm's topology.stats.sample.rate, 0.05: reading the clock twice costs 0.1 us, and a mean
    # needs no more.  0: nothing is timed.
    sample_one_in: Lab[CountOrZero] = 20
    # None: /metrics, /healthz and /readyz are not served.  They show names and counts to anyone who
    # can connect, so they are on loopback unless you set another host.
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    host: str = "127.0.0.1"


class EventsSettings(Section, frozen=True, kw_only=True):
    """Where a run keeps what it decided and why, for ``flowctl explain``."""

    # None: beside the checkpoint, if that is in files; else nowhere.
    file: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    # Two files of this size at most: some 14 hours of a run, at 1.6 kB each 5 s.  0: none.
    bytes_max: Lab[CountOrZero] = 8 << 20


class RecordSettings(Section, frozen=True, kw_only=True):
    """Where a run records what its core is told and decides, for ``flowctl replay``."""

    # None: it is not recorded.
    file: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    # A replay needs the beginning, so the file does not rotate: when it is full the recording ends.
    # A call of 100 records takes some 60 bytes in it.
    bytes_max: Lab[CountOrZero] = 1 << 30


class LossSettings(Section, frozen=True, kw_only=True):
    """How many records a run may leave out: rejected, or given up and dead-lettered."""

    # "100": that many; "0.1%": that share of the records done.  None: any number, and the run ends
    # with an exit code of its own.
    fail_over: Annotated[str, msgspec.Meta(pattern=r"^\d+$|^\d+(\.\d+)? ?%$")] | None = None


class Settings(CoreSettings, frozen=True, kw_only=True):
    """All settings of a run, by section; immutable.  docs/settings.md lists names and ranges of
    those that users set, docs/dev/lab.md those whose names begin with ``lab.``.

    Constructors check nothing: :meth:`with_overrides` and :meth:`checked` do, and so does a run.
    """

    checkpoint: CheckpointSettings = CheckpointSettings()
    listen: ListenSettings = ListenSettings()
    start: StartSettings = StartSettings()
    wait: WaitSettings = WaitSettings()
    call: CallSettings = CallSettings()
    metrics: MetricsSettings = MetricsSettings()
    loss: LossSettings = LossSettings()
    events: EventsSettings = EventsSettings()
    record: RecordSettings = RecordSettings()

    def with_overrides(self, overrides: Mapping[str, Any]) -> Settings:
        """Return a copy with dotted names replaced; values may be text, as with ``--set``.

        Raises :class:`ConfigError` that names the field, what is wrong and what is allowed.
        """
        tree = msgspec.to_builtins(self)
        for name, value in overrides.items():
            _place(tree, name, value)
        return _converted(tree)

    def for_bolts(self, count: int) -> Settings:
        """Return these settings for a run of ``count`` bolts: see ``TimeoutSettings.for_bolts``.

        A bolt that beats is waited for until the bound of a call ends it: its tuple need not go to
        another, which would only be held up as well.
        """
        timeout, bound_s = self.timeout, self.call.timeout_s
        if isinstance(count, int):  # else the bolts refuse it
            timeout = timeout.for_bolts(count)
        if bound_s is not None:
            # It may have waited for another call, and heartbeats tell that a call is over.
            patience_s = 2 * bound_s + 20 * timeout.heartbeat_s
            timeout = msgspec.structs.replace(timeout, rto_max_s=max(timeout.rto_max_s, patience_s))
        return msgspec.structs.replace(self, timeout=timeout)

    def checked(self) -> Settings:
        """Return these settings; raise :class:`ConfigError` for a value out of its range.

        For settings built with constructors, which do not check anything.
        """
        return _converted(msgspec.to_builtins(self))


prepare(Settings)

# What constructors take: a mapping gives the values of dotted names.
GivenSettings: TypeAlias = Settings | Mapping[str, Any] | None


def settings_of(given: GivenSettings) -> Settings:
    """Return ``given`` as settings; None: the defaults; ``{"hedge.enabled": False}``: with that.

    Raises :class:`ConfigError` for a name or value in a mapping that is not possible, and for
    anything else.
    """
    if isinstance(given, Settings):
        return given
    if given is None or isinstance(given, Mapping):
        return Settings().with_overrides(given or {})
    raise ConfigError(
        "settings",
        f"{with_article(type(given).__name__)} is not Settings.",
        remedy="Give Settings, or a dict: {'tuple.records_max': 500}.",
    )


def _converted(tree: dict[str, Any]) -> Settings:
    try:
        return msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("`$.")[2].rstrip("`")
        section, _, field = name.partition(".")
        if field not in tree.get(section, {}):
            raise ConfigError("settings", f"{error}.", remedy="See docs/settings.md.") from None
        told = name_of(section, field)
        page = "docs/dev/lab.md" if _is_lab(told) else "docs/settings.md"
        raise ConfigError(
            told,
            f"{tree[section][field]!r} is not possible.",
            remedy=f"Give {allowed(told)}. See {page}.",
        ) from None


@cache
def kinds() -> Mapping[str, msgspec.inspect.Type]:
    """Return the name of each setting, as ``--set`` takes it, and what it may be."""
    found: dict[str, msgspec.inspect.Type] = {}
    whole = msgspec.inspect.type_info(Settings)
    assert isinstance(whole, msgspec.inspect.StructType)
    for section in whole.fields:
        assert isinstance(section.type, msgspec.inspect.StructType)
        for field in section.type.fields:
            kind, name = field.type, f"{section.name}.{field.name}"
            if isinstance(kind, msgspec.inspect.Metadata) and (kind.extra or {}).get(IS_LAB):
                kind, name = kind.type, _LAB + name
            found[name] = kind
    return found


def name_of(section: str, field: str) -> str:
    """Return the name of a setting: ``tuple.records_max``, ``lab.window.policy``."""
    name = f"{section}.{field}"
    return name if name in kinds() else _LAB + name


def _is_lab(name: str) -> bool:
    return name.startswith(_LAB)


def allowed(name: str) -> str:
    """Return which values the setting ``name`` takes, for people: ``above 0 and at most 3600``."""
    return _allowed(kinds()[name])


def _allowed(kind: msgspec.inspect.Type) -> str:
    match kind:
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(_allowed(each) for each in types)
        case msgspec.inspect.StrType(pattern=str()):  # the only one is loss.fail_over's
            return "a count of records (100), a share of them (0.1%)"
        case msgspec.inspect.NoneType():
            return "none"
        case msgspec.inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}"
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType(ge=low, le=high):
            most = "" if high is None else f" and at most {high}"
            return f"a whole number of at least {low}{most}"
        case msgspec.inspect.FloatType(gt=above, ge=low, le=high):
            least = f"of at least {low}" if above is None else f"above {above:g}"
            most = "" if high is None else f" and at most {high}"
            return f"a number {least}{most}"
    return "a text"


def _place(tree: dict[str, Any], name: str, value: Any) -> None:
    if not isinstance(name, str):
        raise ConfigError(
            "settings",
            f"{name!r} is not the name of a setting.",
            remedy="Give names with a dot: {'tuple.records_max': 500}.",
        )
    if name not in kinds():
        raise _unknown(name)
    section, _, field = name.removeprefix(_LAB).partition(".")
    tree[section][field] = None if value in ("none", "None") else value


def _unknown(name: str) -> ConfigError:
    if _LAB + name in kinds():
        return ConfigError(
            name,
            "only experiments change this.",
            remedy=f"Leave it out: no job needs it. Its name is {_LAB}{name} (docs/dev/lab.md).",
        )
    if where := CONSTANTS.get(name.removeprefix(_LAB)):
        return ConfigError(name, f"this is a constant: {where}.", remedy="Leave it out.")
    return ConfigError(name, "no such setting.", remedy=_meant(name, sorted(kinds())))


def _meant(name: str, names: list[str]) -> str:
    """The settings that ``name`` probably means; all that users set if it resembles none."""
    import difflib

    near = difflib.get_close_matches(name, names, n=3, cutoff=0.7)
    # "policy" alone: the section is missing.
    near += [known for known in names if known.endswith(f".{name}") and known not in near]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return "Known: " + ", ".join(each for each in names if not _is_lab(each)) + "."
