"""Settings of a run: the core's and the runtime's, one typed tree.

``Settings().with_overrides({"window.policy": "fixed"})`` is what ``--set`` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from flowctl.core.settings import CoreSettings, Count, LongSeconds, Seconds, _Section
from flowctl.errors import ConfigError

CountOrZero = Annotated[int, msgspec.Meta(ge=0)]
# Waits between two looks; a minute is far above any use, and no thread's wait overflows.
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=60_000)]
Microseconds = Annotated[int, msgspec.Meta(ge=0, le=60_000_000)]
WaitStrategyName = Literal["blocking", "progressive", "park"]


class CheckpointSettings(_Section, frozen=True, kw_only=True):
    """When the checkpoint is saved."""

    # What a kill repeats is at most what was acked in this time; a save costs about 1 ms.
    interval_s: Seconds = 0.5


class ListenSettings(_Section, frozen=True, kw_only=True):
    """Where the spout listens for its bolts."""

    # None: loopback for local bolts and local Spark masters, else the driver's host.
    host: str | None = None
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    # The name that bolts connect to, where it differs from ``host`` (NAT, Spark Connect).
    advertise: str | None = None
    # "auto": TLS exactly when the host is not loopback.
    tls: Literal["auto", "on", "off"] = "auto"
    # A stop for defects and strangers; a record must fit.
    frame_bytes_max: Count = 256 << 20


class StartSettings(_Section, frozen=True, kw_only=True):
    """How long to wait for bolts."""

    # A cold Spark executor with 64 Arrow workers took 42 s (measured); twice that and some.
    bolts_timeout_s: LongSeconds = 120.0


class WaitSettings(_Section, frozen=True, kw_only=True):
    """How a loop waits that has nothing to do; what a level really does: ``waiting/strategies.py``.

    ``spout``: the sender has nothing to send; ``bolt``: a bolt has nothing to take;
    ``backpressure``: all windows are full, or a bolt's connection takes no more.  ``blocking``
    waits until it is woken; ``progressive`` uses level1_count turns without waiting, level2_count
    turns of the shortest wait there is, then sleeps of level3_sleep_ms; ``park`` waits park_us.
    """

    # All loops are woken when there is work; what looking by the clock costs: ADR 11.
    spout_strategy: WaitStrategyName = "blocking"
    # The numbers of the documents.  A spout that emitted nothing sleeps at once: its source
    # was just asked.
    spout_level1_count: CountOrZero = 0
    spout_level2_count: CountOrZero = 0
    spout_level3_sleep_ms: Milliseconds = 1
    # Some 80 us come on top in Python, so less would only look finer.  0: spin.
    spout_park_us: Microseconds = 100
    # A bolt's next tuple is often under way: look again at once, then some 80 ms long every 80 us.
    bolt_strategy: WaitStrategyName = "blocking"
    bolt_level1_count: CountOrZero = 1
    bolt_level2_count: CountOrZero = 1000
    bolt_level3_sleep_ms: Milliseconds = 1
    bolt_park_us: Microseconds = 100
    backpressure_strategy: WaitStrategyName = "blocking"
    backpressure_level1_count: CountOrZero = 1
    backpressure_level2_count: CountOrZero = 1000
    backpressure_level3_sleep_ms: Milliseconds = 1
    backpressure_park_us: Microseconds = 100


class MetricsSettings(_Section, frozen=True, kw_only=True):
    """What the tasks of a topology tell of themselves."""

    # Storm's topology.builtin.metrics.bucket.size.secs.  None: nothing is counted.
    interval_s: LongSeconds | None = 60.0
    # Storm's topology.stats.sample.rate, 0.05: two readings of the clock cost 0.1 us, and a mean
    # needs no more.  0: nothing is timed.
    sample_one_in: CountOrZero = 20


class LossSettings(_Section, frozen=True, kw_only=True):
    """How many records a run may leave out: rejected, or given up and dead-lettered."""

    # "100": so many; "0.1%": such a share of the records done. None: any number, and the run ends
    # with an exit code of its own.
    fail_over: Annotated[str, msgspec.Meta(pattern=r"^\d+$|^\d+(\.\d+)? ?%$")] | None = None


class Settings(CoreSettings, frozen=True, kw_only=True):
    """All settings of a run; immutable."""

    checkpoint: CheckpointSettings = CheckpointSettings()
    listen: ListenSettings = ListenSettings()
    start: StartSettings = StartSettings()
    wait: WaitSettings = WaitSettings()
    metrics: MetricsSettings = MetricsSettings()
    loss: LossSettings = LossSettings()

    def with_overrides(self, overrides: Mapping[str, Any]) -> Settings:
        """Return a copy with dotted names replaced; values may be text, as from ``--set``.

        Raises :class:`ConfigError` that names the field, what is wrong and what is allowed.
        """
        tree = msgspec.to_builtins(self)
        for name, value in overrides.items():
            _place(tree, name, value)
        return _converted(tree)

    def checked(self) -> Settings:
        """Return these settings; raise :class:`ConfigError` for a value out of its range.

        For settings that were put together by constructors, which check nothing.
        """
        return _converted(msgspec.to_builtins(self))


def _converted(tree: dict[str, Any]) -> Settings:
    try:
        return msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("`$.")[2].rstrip("`")
        section, _, field = name.partition(".")
        if field not in tree.get(section, {}):
            raise ConfigError("settings", f"{error}.", remedy="See docs/settings.md.") from None
        raise ConfigError(
            name,
            f"{tree[section][field]!r} is not possible.",
            remedy=f"Give {allowed(name)}. See docs/settings.md.",
        ) from None


def allowed(name: str) -> str:
    """Return what the setting ``name`` takes, for people: ``above 0 and at most 3600``."""
    found = msgspec.inspect.type_info(Settings)
    for part in name.split("."):
        assert isinstance(found, msgspec.inspect.StructType)
        found = next(field.type for field in found.fields if field.name == part)
    return _allowed(found)


def _allowed(kind: msgspec.inspect.Type) -> str:
    match kind:
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(_allowed(each) for each in types)
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
    section, _, field = name.partition(".")
    known = tree.get(section)
    if not isinstance(known, dict) or field not in known:
        names = sorted(f"{s}.{f}" for s, fields in tree.items() for f in fields)
        raise ConfigError(name, "no such setting.", remedy=_meant(name, names))
    known[field] = None if value in ("none", "None") else value


def _meant(name: str, names: list[str]) -> str:
    """The settings that ``name`` is likely to mean; all where it is like none."""
    import difflib

    near = difflib.get_close_matches(name, names, n=3, cutoff=0.7)
    # "policy" alone: the section is missing.
    near += [known for known in names if known.endswith(f".{name}") and known not in near]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return "Known: " + ", ".join(names) + "."
