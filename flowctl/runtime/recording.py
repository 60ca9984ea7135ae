"""A recording: what the core of a run was told and what it decided, to be replayed.

A core decides by what it is told and when, and by nothing else.  So a recording has its calls, with
their times, and after each turn what the core decided; :func:`replayed` makes the same calls on a
new core and compares its decisions with the recorded ones, byte for byte.

The file begins with :data:`MAGIC`.  Then come blocks: a length of four bytes (big-endian), and so
many bytes of compressed msgpack; a length of 0 ends a recording that is whole.  The first block is
a :class:`Began`, each other one an array of calls, ``[name, arguments, keywords, result]``; a turn
of the core is the call ``turn``, its result the bytes of what was decided.

Records are in it by position and size, without their values.  Errors are, as in the log.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias, cast

import msgspec

import flowctl
from flowctl import disk
from flowctl.config import RecordSettings
from flowctl.core.buffer import NO_SIZE, sizes_of
from flowctl.core.carried import Packed, record_of
from flowctl.core.driver import Turn, pump
from flowctl.core.first_guess import Learned
from flowctl.core.messages import Emission, Fail, Progress, RangeEmission, RangeFail
from flowctl.core.ranges.core import RangeCore
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import (
    NOTHING,
    AckOutcome,
    Checkpoint,
    PartitionCheckpoint,
    Position,
    Receipts,
    Record,
    position_of,
)
from flowctl.core.settings import CoreSettings
from flowctl.core.spout import SpoutCore
from flowctl.errors import ConfigError, FlowctlError
from flowctl.prepared import prepare
from flowctl.runtime.control import RunControl
from flowctl.wire.frames import ToSpout

#: Version 1 of the format: whoever changes what is in the file changes the number.
MAGIC: Final = b"flowctl-recording 1\n"
_KIND: Final = MAGIC.split()[0] + b" "
#: A recording that is there when a run begins gets this name: a resumed job keeps both.
OLDER: Final = ".1"
_LENGTH: Final = 4
_END: Final = bytes(_LENGTH)
_LEVEL: Final = 1  # a fifth of the size for 10 ns a byte; higher levels gain a tenth for twice that
_CALLS_MAX: Final = 50_000  # in a block: some MB

RecordedCore: TypeAlias = SpoutCore | RangeCore
_Call: TypeAlias = tuple[str, tuple[Any, ...], dict[str, Any], Any]

_OF_ALL: Final = (
    "add_bolt", "remove_bolt", "end_of_input", "on_fail", "on_revoked", "on_heartbeat",
    "on_dead_lettered", "drop_peer", "suspect", "retire", "dismiss",
)  # fmt: skip
_OF_RECORDS: Final = (
    "offer", "set_aside", "on_committed", "on_ack", "intake.note_mark", "intake.finish",
    "handover.give", "handover.hold_back", "handover.take_away",
)  # fmt: skip
_OF_RANGES: Final = (
    "offer_extents", "adopt", "on_progress", "on_range_fail", "on_split", "wind_up", "tell_saved",
)  # fmt: skip

# Arguments that msgpack alone does not bring back, by their places.
_TYPES: Final[dict[str, dict[int, Any]]] = {
    **{key: {2: ToSpout} for key in ("on_ack", "on_fail", "on_revoked", "on_heartbeat")},
    **{key: {2: ToSpout} for key in ("on_progress", "on_range_fail", "on_split")},
    "handover.give": {1: PartitionCheckpoint},
    **{key: {1: Position} for key in ("intake.note_mark", "intake.finish")},
    "offer_extents": {0: dict[str, Extent]},
    "adopt": {0: Receipts},
}  # fmt: skip


class Began(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a recording: what the core was made of.

    ``settings`` are the core's alone: where anything listens or is stored is not among them.
    ``seed`` is that of the jitter, ``bolts`` the number of bolts that were to connect.
    """

    version: str
    job: str
    run: int
    began_unix_s: float
    by_reference: bool
    settings: dict[str, Any]
    checkpoint: Checkpoint
    has_dead_letter: bool
    keeps_receipts: bool
    bolts: int
    seed: int
    learned: Learned | None = None

    def core(self, settings: CoreSettings | None = None) -> RecordedCore:
        """Make the core as the run made it; with ``settings`` in place of its own."""
        settings = settings or self.core_settings
        core = self._new_core(settings)
        if self.learned is not None:
            core.recall(self.learned)
        return core

    def _new_core(self, settings: CoreSettings) -> RecordedCore:
        chance = Random(self.seed).random
        if self.by_reference:
            return RangeCore(
                settings,
                checkpoint=self.checkpoint,
                has_dead_letter=self.has_dead_letter,
                chance=chance,
                keeps_receipts=self.keeps_receipts,
            )
        core = SpoutCore(
            settings,
            checkpoint=self.checkpoint,
            has_dead_letter=self.has_dead_letter,
            chance=chance,
        )
        core.expect_bolts(self.bolts)
        return core

    @property
    def core_settings(self) -> CoreSettings:
        """The core's settings in that run."""
        return msgspec.convert(self.settings, CoreSettings)


prepare(Began)
_encode: Final = msgspec.msgpack.Encoder(enc_hook=repr).encode


# -- Writing ----------------------------------------------------------------------------------


class Recorder:
    """Writes the recording of one run to ``path``, at most ``bytes_max`` of it.

    Calls of the core are noted under the lock that guards it; :meth:`flush` and :meth:`close` are
    for one thread.  A file that can't be written, or is full, ends the recording and nothing else:
    :attr:`problem` says why.  The process can be killed at any time: what happened before the last
    :meth:`flush` is in the file.
    """

    def __init__(self, path: str, *, bytes_max: int) -> None:
        """Raises :class:`ConfigError` if ``path`` can't be written."""
        self.path: str = path
        self.problem: str = ""
        self._bytes_max = bytes_max
        self._size = 0
        self._calls: deque[_Call] = deque()  # appended by many threads, taken by one
        self._is_inside = False  # a call of the core is going on; those that it makes are its own
        try:
            self._file: BinaryIO = _opened(path)
            self._put(MAGIC)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(
                "record.file", f"{path} can't be written: {why}.", remedy="Name another file."
            ) from None

    def begin(self, core: RecordedCore, began: Began) -> None:
        """Note from now on what ``core``, which was made as ``began`` says, is told."""
        self._put_block(_encode(began))
        for name in (*_OF_ALL, *(_OF_RANGES if isinstance(core, RangeCore) else _OF_RECORDS)):
            of, method = _owner(core, name)
            setattr(of, method, self._noting(name, getattr(of, method)))
        self.flush()

    def _noting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **keywords: Any) -> Any:
            if self._is_inside or self.problem:
                return call(*args, **keywords)
            self._is_inside = True
            result: Any = None
            try:
                result = call(*args, **keywords)
            except FlowctlError as error:
                result = error.problem
                raise
            finally:
                self._is_inside = False
                self._calls.append((name, args, keywords, result))
            return result

        return noted

    def turned(self, args: tuple[Any, ...], turn: Turn) -> None:
        """Note a turn of the core; ``args`` are those of :func:`turn_of`."""
        if not self.problem:
            self._calls.append(("turn", args, {}, turn))

    def flush(self) -> bool:
        """Hand all that was noted to the operating system; True: from now on nothing is noted."""
        was_lost = bool(self.problem)
        while self._calls and not self.problem:
            most = min(len(self._calls), _CALLS_MAX)
            block = [_written(self._calls.popleft()) for _ in range(most)]
            self._put_block(_encode(block))
        if not self.problem:
            try:
                self._file.flush()
            except OSError as error:
                self._lose(f"{self.path}: {error.strerror or error}")
        if self.problem:
            self._calls.clear()
        return bool(self.problem) and not was_lost

    def close(self) -> None:
        """Flush and close.  What the core is told afterwards is not noted."""
        self.flush()
        if not self.problem:
            self._try_to_put(_END)
        self._lose(self.problem or "the recording is closed")

    def _put_block(self, data: bytes) -> None:
        packed = zlib.compress(data, _LEVEL)
        if self._size + _LENGTH + len(packed) > self._bytes_max:
            self._lose(f"{self.path} is full, with record.bytes_max: the rest is not recorded")
            return
        self._try_to_put(len(packed).to_bytes(_LENGTH, "big") + packed)

    def _try_to_put(self, data: bytes) -> None:
        try:
            self._put(data)
        except OSError as error:
            self._lose(f"{self.path}: {error.strerror or error}")

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._size += len(data)

    def _lose(self, why: str) -> None:
        self.problem = why
        try:
            self._file.close()
        except OSError:
            return  # what was written so far can be read


def _opened(path: str) -> BinaryIO:
    """Open a new file; a recording that is there is kept under another name."""
    disk.make_directory(os.path.dirname(os.path.abspath(path)))
    if os.path.isfile(path):
        with open(path, "rb") as there:
            is_other = there.read(len(_KIND)) not in (b"", _KIND)  # a program, say
        if is_other:
            what = f"{path} is there, and is not a recording."
            raise ConfigError("record.file", what, remedy="Name another file.")
        os.replace(path, path + OLDER)
    return open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, disk.MODE), "wb")


def _owner(core: RecordedCore, name: str) -> tuple[Any, str]:
    """Return the part of ``core`` that has the method, and the method's name."""
    part, _, method = name.rpartition(".")
    return (getattr(core, part) if part else core), method


def _written(call: _Call) -> _Call:
    """Return ``call`` as it is written: without the values of records."""
    name, args, keywords, result = call
    if name == "turn":
        return name, args, keywords, _encode(decisions(result))
    if (without := _WITHOUT_VALUES.get(name)) is not None:
        args, keywords = without(args, keywords)
    return name, args, keywords, result.value if isinstance(result, AckOutcome) else result


_Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def _offered(args: tuple[Any, ...], keywords: dict[str, Any]) -> _Arguments:
    partition, records = args
    sizes = keywords.get("sizes")
    sizes = sizes_of(records) if sizes is None else sizes
    first, last, count = position_of(records, 0), position_of(records, -1), len(records)
    positions: Any = first
    if not (isinstance(first, int) and isinstance(last, int) and last - first == count - 1):
        positions = [record.position for record in records]
    # Else they are all numbers in between, as positions rise.
    one_size: Any = sizes[0] if sizes.count(sizes[0]) == count else sizes
    return (partition, count, positions), {"now_s": keywords["now_s"], "sizes": one_size}


def _set_aside(args: tuple[Any, ...], keywords: dict[str, Any]) -> _Arguments:
    partition, record = args
    return (partition, record.position), keywords


def _failed(args: tuple[Any, ...], keywords: dict[str, Any]) -> _Arguments:
    bolt, epoch, fail = args
    return (bolt, epoch, _without_traceback(fail)), keywords


def _range_failed(args: tuple[Any, ...], keywords: dict[str, Any]) -> _Arguments:
    bolt, epoch, said = args
    assert isinstance(said, RangeFail)
    record = said.record and Record(said.record.position, None)
    fail = _without_traceback(said.fail)
    return (bolt, epoch, msgspec.structs.replace(said, fail=fail, record=record)), keywords


def _without_traceback(fail: Fail) -> Fail:
    return msgspec.structs.replace(fail, traceback="") if fail.traceback else fail


def _progressed(args: tuple[Any, ...], keywords: dict[str, Any]) -> _Arguments:
    bolt, epoch, told = args
    assert isinstance(told, Progress)
    if did := (told.did if told.did.rejected or told.did.receipts else None):
        rejected = [msgspec.structs.replace(each, value=None) for each in did.rejected]
        did = msgspec.structs.replace(did, rejected=rejected, receipts=[b""] * len(did.receipts))
        told = msgspec.structs.replace(told, did=did)
    return (bolt, epoch, told), keywords


def _adopted(args: tuple[Any, ...], keywords: dict[str, Any]) -> _Arguments:
    (kept,) = args
    assert isinstance(kept, Receipts)
    receipts = [b""] * len(kept.receipts)
    return (msgspec.structs.replace(kept, receipts=receipts),), keywords


_WITHOUT_VALUES: Final[dict[str, Callable[[tuple[Any, ...], dict[str, Any]], _Arguments]]] = {
    "offer": _offered,
    "set_aside": _set_aside,
    "on_fail": _failed,
    "on_range_fail": _range_failed,
    "on_progress": _progressed,
    "adopt": _adopted,
}


def _settings_in(core: RecordedCore) -> dict[str, Any]:
    """Return the settings of ``core`` as a recording has them."""
    return {
        name: msgspec.to_builtins(getattr(core.settings, name))
        for name in CoreSettings.__struct_fields__
    }


class RunOf(NamedTuple):
    """Whose recording it is, and what the core was made of: the checkpoint and the seed."""

    job: str
    run: int
    checkpoint: Checkpoint
    seed: int


def recorder_of(control: RunControl, settings: RecordSettings, of: RunOf) -> Recorder | None:
    """Return what records the run of ``control``, whose core was told nothing yet; None: nothing.

    Raises :class:`ConfigError` for a topology.
    """
    core, path = control.core, settings.file
    if path is None:
        return None
    if not isinstance(core, SpoutCore | RangeCore):
        raise ConfigError(
            "record.file",
            "a topology can't be recorded: it decides by what is in the records, and a recording"
            " has no values.",
            remedy="Leave it out; `flowctl explain` tells what was decided and why.",
        )
    recorder = Recorder(path, bytes_max=settings.bytes_max)
    began = Began(
        version=flowctl.__version__,
        job=of.job,
        run=of.run,
        began_unix_s=time.time(),
        by_reference=isinstance(core, RangeCore),
        settings=_settings_in(core),
        checkpoint=of.checkpoint,
        has_dead_letter=core.has_dead_letter,
        keeps_receipts=isinstance(core, RangeCore) and core.keeps_receipts,
        bolts=core.book.to_come,
        seed=of.seed,
        learned=core.book.pool.learned,
    )
    recorder.begin(core, began)
    control.on_turn = recorder.turned
    return recorder


# -- What was decided -------------------------------------------------------------------------


def turn_of(core: RecordedCore, args: Sequence[Any]) -> Turn:
    """Return one turn of ``core``: now, the most emissions, the most bytes, heard until."""
    now_s, emits_max, bytes_max, heard_until_s = args
    return pump(core, now_s, emits_max=emits_max, bytes_max=bytes_max, heard_until_s=heard_until_s)


def decisions(turn: Turn) -> list[tuple[str, Any]]:
    """Return what was decided in a turn, each with its kind, as it is compared."""
    told: list[tuple[str, Any]] = [("emit", _emitted(e)) for e in turn.emissions]
    told += [(type(order).__name__, order) for order in turn.orders]
    told += [(type(event).__name__, event) for event in turn.events]
    told += [("dead", (dead.gave_up.tuple_id, len(dead.records))) for dead in turn.dead]
    if not turn.is_more:
        told.append(("next", turn.next_s))
    return told


def _emitted(e: Emission) -> tuple[Any, ...]:
    if isinstance(e, RangeEmission):
        where: tuple[Any, ...] = (e.start, e.stop, e.tells_saved)
    else:
        where = (position_of(e.records, 0), position_of(e.records, -1), len(e.records))
    settled = (e.acked_through, e.given_up)
    return (e.bolt, e.tuple_id, e.attempt, e.partition, *where, e.size_bytes, *settled)


# -- Reading and replaying --------------------------------------------------------------------


class Recording:
    """A recording that is read: :attr:`began`, then :meth:`calls`, once, then :attr:`missing`.

    ``missing`` says what of the run is not in it; empty: nothing.  Raises :class:`ConfigError` for
    a file that is none, or of another format, and ``OSError`` if it can't be read.
    """

    def __init__(self, path: str) -> None:
        self.missing: str = ""
        self._file = open(path, "rb")  # noqa: SIM115  # it is read by calls()
        magic = self._file.readline(len(MAGIC))
        first = _block(self._file) if magic == MAGIC else None
        if first is None:
            self._file.close()
            what, remedy = "not a recording", "Name a file that `flowctl run --record FILE` wrote."
            if magic.startswith(_KIND) and magic != MAGIC:
                what = "of another version of the format"
                remedy = "Replay it with the flowctl that wrote it."
            raise ConfigError("FILE", f"{path} is {what}.", remedy=remedy)
        self.began: Began = msgspec.msgpack.decode(first, type=Began)

    def calls(self) -> Iterator[_Call]:
        """Yield the calls, as they were written; a damaged end, as after a kill, is left out."""
        with self._file as file:
            read = file.tell()
            while (block := _block(file)) is not None:
                for name, args, keywords, result in msgspec.msgpack.decode(block):
                    yield name, tuple(args), keywords, result
                read = file.tell()
            file.seek(read)
            self.missing = _missing(file.read(_LENGTH), os.fstat(file.fileno()).st_size - read)


def _missing(end: bytes, unread: int) -> str:
    if end == _END:
        return ""
    if unread:
        why = "the run was killed while it wrote, or the file is damaged"
        return f"the recording can't be read to its end, by {unread} bytes: {why}"
    return "the recording ends before the run: it was killed, or could record no more"


def _block(file: BinaryIO) -> bytes | None:
    """Return the next block; None: there is none, or its end is missing."""
    length = int.from_bytes(file.read(_LENGTH), "big")
    data = file.read(length)
    if not length or len(data) < length:
        return None
    try:
        return zlib.decompress(data)
    except zlib.error:
        return None


class Replay:
    """A replay of ``recording``: :meth:`steps`, then how it went.

    ``difference`` is None if all was decided as it is recorded, else what was recorded and what was
    decided now, as text, with the time since the first call [s].  ``core`` is the core that was
    driven, ``decided`` how often each kind of decision was made.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.core: RecordedCore = recording.began.core()
        self.calls: int = 0
        self.turns: int = 0
        self.decided: Counter[str] = Counter()
        self.began_s: float | None = None
        self.ended_s: float = 0.0
        self.difference: tuple[float, str, str] | None = None

    @property
    def for_s(self) -> float:
        """How long the run was, from the first call to the last [s]."""
        return 0.0 if self.began_s is None else self.ended_s - self.began_s

    def steps(self) -> Iterator[_Call]:
        """Yield each call after it was made, with its result now, up to the first difference."""
        for name, args, keywords, recorded in self._recording.calls():
            self.calls += 1
            self._note_time(name, args, keywords)
            if name == "turn":
                yield name, args, keywords, self._turn(args, recorded)
            else:
                yield self._made(name, _read(name, args, keywords), recorded)
            if self.difference is not None:
                return

    def _turn(self, args: Sequence[Any], recorded: bytes) -> Turn:
        turn = turn_of(self.core, args)
        told = decisions(turn)
        self.turns += 1
        self.decided.update(kind for kind, _ in told if kind != "next")
        self._compare(recorded, _encode(told))
        return turn

    def _made(self, name: str, given: _Arguments, recorded: Any) -> _Call:
        of, method = _owner(self.core, name)
        try:
            result = getattr(of, method)(*given[0], **given[1])
        except FlowctlError as error:
            result = error.problem
        told = result.value if isinstance(result, AckOutcome) else result
        if told != recorded:
            self._differ(f"{name} gave {recorded!r}", f"{name} gave {told!r}")
        return name, *given, result

    def _note_time(self, name: str, args: Sequence[Any], keywords: dict[str, Any]) -> None:
        now_s = args[0] if name == "turn" else keywords.get("now_s")
        if now_s is not None:
            self.began_s = now_s if self.began_s is None else self.began_s
            self.ended_s = now_s

    def _compare(self, recorded: bytes, now: bytes) -> None:
        if recorded == now:
            return
        was, made = msgspec.msgpack.decode(recorded), msgspec.msgpack.decode(now)
        both = enumerate(zip(was, made, strict=False))
        at = next((i for i, (a, b) in both if a != b), min(len(was), len(made)))
        self._differ(_shown(was, at), _shown(made, at))

    def _differ(self, recorded: str, now: str) -> None:
        self.difference = (self.for_s, recorded, now)


def _shown(told: Sequence[Any], at: int) -> str:
    return " ".join(map(str, told[at])) if at < len(told) else "nothing more"


def _read(name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> _Arguments:
    """Return the arguments of a call as the core takes them."""
    types = _TYPES.get(name, {})
    args = tuple(
        msgspec.convert(value, types[index]) if index in types else value
        for index, value in enumerate(args)
    )
    if name == "set_aside":
        return (args[0], Record(_position(args[1]), None)), keywords
    if name != "offer":
        return args, keywords
    partition, count, positions = args
    if not isinstance(positions, list):
        positions = range(positions, positions + count)
    told = keywords["sizes"]
    sizes = told if isinstance(told, list) else [told] * count
    records = [_record(p, size) for p, size in zip(positions, sizes, strict=True)]
    return (partition, records), {**keywords, "sizes": sizes}


def _position(told: Any) -> Position:
    return cast("Position", tuple(told) if isinstance(told, list) else told)


def _record(position: Any, size: int) -> Record:
    """Return a record of this size, whose value was not written."""
    at = _position(position)
    if size == NO_SIZE:
        return Record(at, NOTHING)
    # The core asks for the length of what would be sent, and for nothing else of it.
    return record_of(at, Packed(cast("bytes", range(size)), None))


def replayed(path: str) -> Replay:
    """Replay the recording in ``path`` to its end, or to the first difference."""
    replay = Replay(Recording(path))
    deque(replay.steps(), maxlen=0)
    return replay
