"""What flowctl needs from outside, as protocols: a source, a store, and bolts.

Adapters implement these; ``flowctl.testing`` has a conformance suite for each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from flowctl.config import WaitSettings
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.letters import LeftOut, Letter
from flowctl.core.messages import Emission
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Position, Record
from flowctl.errors import FlowctlError
from flowctl.range_ports import RangeReader
from flowctl.relay_ports import RelayDoor

if TYPE_CHECKING:
    from flowctl.bolts.batch import Batch

# What users write: called on a worker with one tuple; returning is an ack, raising a fail.  With
# `async def`, up to `slots` tuples run at once as tasks of the bolt's event loop.
Process: TypeAlias = "Callable[[Batch], Any] | Callable[[Batch], Awaitable[Any]]"


@runtime_checkable
class PerConnection(Protocol):
    """A process that has its own state for each bolt, and for each connection of a bolt."""

    def for_connection(self, bolt: str) -> Process:
        """Return what processes the tuples that ``bolt`` receives over a new connection."""


class SourceChunk(msgspec.Struct, frozen=True, gc=False):
    """Records of one partition, in order.  Empty: nothing at the moment, ask again later.

    ``end``: these are the partition's last records, as far as the source knows; after a restart it
    recognises by this value that nothing was added.  It is saved with the partition once all its
    records are acked (``PartitionCheckpoint.end``), and is one of the values that a position may
    have.  ``is_busy``: the chunk is empty although there is more: ask again at once.

    ``mark``: by this value the source recognises, after a restart in mid-partition, that what it
    reads is still what was read before.  The newest is saved with the partition
    (``PartitionCheckpoint.mark``) until its end is.  The same types as a position.
    """

    partition: str
    records: Sequence[Record]
    end: Position | None = None
    is_busy: bool = False
    mark: Position | None = None


class SourceProgress(msgspec.Struct, frozen=True, gc=False):
    """How much of the source has been read, in ``unit`` ("bytes", "records")."""

    done: int
    total: int
    unit: str


@runtime_checkable
class FlowProducer(Protocol):
    """Produces the stream; written by the user; knows nothing of windows, acks or bolts.

    All calls come from one thread.  Errors of the source are raised as
    :class:`flowctl.errors.SourceError`; whatever was polled before is still processed and saved.
    """

    def partitions(self) -> Sequence[str]:
        """Names of the partitions, stable between runs."""

    def open(self, checkpoint: Checkpoint) -> None:
        """Get ready to read each partition from just after its checkpoint's position.

        Records in the checkpoint's acked ranges may be produced or left out: the spout skips
        them.  A partition that the checkpoint doesn't know is read from its beginning.
        """

    def poll(self, max_records: int) -> SourceChunk | None:
        """Return up to ``max_records`` records, or None at the end of the input.

        Must return within some 100 ms (with an empty chunk if there is nothing yet), so that
        an interruption is honoured.
        """

    def close(self) -> None:
        """Release what ``open`` acquired; called once, also after errors."""


@runtime_checkable
class MeasuredProducer(Protocol):
    """A producer that knows how much there is to read; enables a progress bar and an ETA."""

    def progress(self) -> SourceProgress:
        """How much has been read by now; cheap, called from any thread."""


@runtime_checkable
class PrefixingProducer(Protocol):
    """A producer whose partition names begin with something that says how they are treated."""

    def prefix_of(self, partition: str) -> str | None:
        """Return the prefix by which ``partition`` is treated; None: it is not known."""


class SourceHost(Protocol):
    """What a run offers a producer whose partitions come and go.  For the thread that polls."""

    job: str
    guarantee: ProcessingGuarantee

    def saved(self) -> Checkpoint:
        """The state of this job in the checkpoint store, as far as is known."""

    def uncommitted(self, partition: str) -> int:
        """Return how many records of ``partition`` were read and are above its cumulative ack."""

    def give(self, partition: str, state: PartitionCheckpoint) -> None:
        """Read ``partition`` here from now on, starting just after ``state.position``.

        Records in its acked ranges are skipped.  Call this before its first record is polled.
        """

    def take_away(self, partitions: Sequence[str]) -> Checkpoint:
        """Leave ``partitions`` to another reader: finish what is nearly done, save, drop the rest.

        Returns the saved state.  If the store is unavailable that is less than what was done: the
        next reader does the rest again.
        """


@runtime_checkable
class SharingProducer(Protocol):
    """A producer that shares its partitions with other drivers, so partitions come and go."""

    def attach(self, host: SourceHost) -> None:
        """Called before ``open``; ``host`` may be called from ``open``, ``poll`` and ``keep``."""

    def keep(self) -> bool:
        """Called now and then while polled records wait for room: keep the other connections alive.

        Returns False if partitions were taken away: the rest of the last chunk no longer belongs to
        us.
        """


class DeadLetter(Protocol):
    """Keeps records that can't be processed, so that the job can go on without them."""

    def dead_letter(
        self, job: str, partition: str, records: Sequence[Record], *, attempts: int, reason: str
    ) -> None:
        """Keep ``records``; they must be safe when this returns, because then they count as
        processed.

        Called from one thread; it may block.  An exception ends the run, and the records are not
        counted; after a kill the same records may come again.
        """

    def close(self) -> None:
        """Release all resources; called once, when the run ends."""


@runtime_checkable
class RedrivableDeadLetter(Protocol):
    """A dead letter store that can return what it keeps, to be processed again.

    Letters from :meth:`to_redrive` are processed under partitions named by
    :func:`flowctl.core.letters.redrive_partition`.  One that fails again comes to
    :meth:`dead_letter` under that name and position, and must become a letter of the original
    record.  After a kill the same letters are requested again until :meth:`on_redriven`.
    """

    def dead_letter(
        self,
        job: str,
        partition: str,
        records: Sequence[Record],
        *,
        attempts: int,
        reason: str,
        bolts: Sequence[str] = (),
        epoch: int | None = None,
    ) -> None:
        """As :meth:`DeadLetter.dead_letter`; also gets the bolts on which it failed, and the
        run."""

    def to_redrive(self, job: str) -> Sequence[Letter]:
        """Return the letters of ``job`` that are marked for redrive; called once, as a run
        begins."""

    def on_redriven(self, job: str, letters: Sequence[Letter]) -> None:
        """Remove those of ``letters`` that did not fail again: all count as processed, and that is
        saved.
        """

    def hint(self, job: str) -> str:
        """Return how a person can inspect the letters of ``job``, such as a command line."""

    def close(self) -> None:
        """As :meth:`DeadLetter.close`; :meth:`on_redriven` may still be called."""


@runtime_checkable
class BatchDeadLetter(Protocol):
    """A dead letter store that keeps several tuples in one step, such as one append with one
    fsync."""

    def dead_letter_many(
        self, job: str, dead: Sequence[LeftOut], *, epoch: int | None = None
    ) -> None:
        """As :meth:`DeadLetter.dead_letter` for each of ``dead``, in order; all are safe when it
        returns.

        An exception ends the run, and none of them is counted.
        """


@runtime_checkable
class AttemptDeadLetter(Protocol):
    """A dead letter store that knows attempts of Spark's tasks: a letter counts if its task does.

    A task that failed or was killed is run again, and may write the rows that it had left out.
    """

    def of_attempt(self) -> DeadLetter:
        """Return a store for one attempt: what it keeps counts from :meth:`count_attempt` on.

        It is an :class:`AttemptDeadLetter` too.
        """

    def count_attempt(
        self, job: str, partition: str, fate: Callable[[Position], bool | None]
    ) -> None:
        """Let the attempt's letters count: it has delivered all of ``partition``.  Called once, on
        the store that :meth:`of_attempt` returned.

        ``fate`` is asked about letters of the partition that other attempts left.  True: its row is
        written now, and the letter goes.  False: it is left out, and the letter counts.  None: this
        attempt did not have that row, and the letter stays what it is.
        """


@runtime_checkable
class CountingDeadLetter(Protocol):
    """A dead letter store that knows how many letters are open, so later runs can report them."""

    def open_letters(self, job: str) -> int:
        """Return how many letters of ``job`` are neither dropped nor reprocessed.

        Called once, as a run ends, after :meth:`DeadLetter.close`.
        """


@runtime_checkable
class ReadableDeadLetter(Protocol):
    """A dead letter store whose letters can be read, such as into a DataFrame."""

    def letters(self, job: str) -> Sequence[Letter]:
        """Return the letters of ``job`` that count, oldest first; also while a run adds some."""


class SpoutListener(Protocol):
    """Is notified of what happens to tuples, from one thread; must not block and must not raise."""

    def on_open(self, job: str, restored: Checkpoint) -> None:
        """A run has begun."""

    def on_emit(self, emission: Emission) -> None:
        """A tuple was sent for the first time."""

    def on_ack(self, emission: Emission) -> None:
        """A tuple is done; also called if its partition was taken away meanwhile, where this has no
        effect."""

    def on_retry(self, emission: Emission, reason: str) -> None:
        """A tuple failed and is retried after its back-off."""

    def on_max_retry_reached(self, emission: Emission, reason: str) -> None:
        """A tuple's attempts ran out."""


class CheckpointStore(Protocol):
    """Keeps one checkpoint per job, with fencing.  Thread-safe.

    Every method raises :class:`flowctl.errors.CheckpointUnavailableError` when the store can't be
    reached and :class:`flowctl.errors.CheckpointCorruptError` when what is stored can't be read;
    the caller, not the store, retries when it is briefly unavailable.

    Three attributes are optional.  ``survives`` is False if what is saved is lost when the process
    ends (memory, fakeredis); views then say that a kill starts over.  ``place`` says where
    checkpoints are, without secrets, and ``caution`` what the user should know about that place; a
    run says both when it begins.
    """

    def acquire(self, job: str) -> int:
        """Take ownership of ``job``: a new epoch, larger than all before; fences older drivers.

        A store that can lose its data starts from the time of day (unix seconds), so epochs keep
        rising for the sinks that remember them.
        """

    def load(self, job: str) -> Checkpoint:
        """Return what is saved; an empty checkpoint if there is nothing."""

    def save(self, job: str, checkpoint: Checkpoint, *, epoch: int) -> None:
        """Save atomically if ``epoch`` is the newest and no partition's position goes back.

        Raises :class:`flowctl.errors.FencedError` for an older epoch and
        :class:`flowctl.errors.InternalError` when a position would go back.  Partitions that
        ``checkpoint`` does not name keep what is stored.
        """

    def jobs(self) -> Sequence[str]:
        """Names of the jobs for which something is stored."""

    def rewind(self, job: str, partition: str, position: Position | None) -> None:
        """Set one partition back to ``position`` (None: its beginning); fences running drivers.

        The acked ranges above it are dropped.  Raises ``ConfigError`` for an unknown job or
        partition, or a position that lies ahead of the saved one.
        """

    def clear(self, job: str) -> bool:
        """Delete the job's checkpoint; its epoch keeps rising; fences; False if nothing was
        stored."""

    def close(self) -> None:
        """Release connections."""


@runtime_checkable
class ShowingStore(Protocol):
    """A checkpoint store that keeps what a run shows, for people elsewhere.  Thread-safe.

    It is one value for each job, which is no part of the checkpoint: it may be lost.  All methods
    raise :class:`flowctl.errors.CheckpointUnavailableError` while the store can't be reached.
    """

    def show(self, job: str, shown: bytes) -> None:
        """Keep ``shown`` in place of what was there, for a day at least."""

    def shown(self, job: str) -> bytes:
        """Return what was kept last; empty if there is nothing."""

    def all_shown(self) -> Sequence[bytes]:
        """Return what is kept of all jobs."""


@runtime_checkable
class RememberingStore(Protocol):
    """A checkpoint store that keeps what a run learned, for the job's next run.  Thread-safe.

    It is one value for each job, which is no part of the checkpoint: it may be lost.  ``clear``
    forgets it.  Both methods raise :class:`flowctl.errors.CheckpointUnavailableError` while the
    store can't be reached.
    """

    def remember(self, job: str, learned: bytes) -> None:
        """Keep ``learned`` in place of what was there; if it is empty, nothing."""

    def remembered(self, job: str) -> bytes:
        """Return what was kept last; empty if there is nothing."""


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """What a bolt needs to reach its spout; passed on by Spark, over a trusted path.

    ``key`` authenticates both sides; ``certificate_pem`` is the one certificate the bolt accepts
    (None: no TLS), ``wait`` how it waits, ``reader`` what it reads ranges with (None: tuples bring
    their records), ``relay`` what it connects through (None: TCP), ``call_timeout_s`` the bound of
    a call of ``process`` (None: none), ``report_s`` how often it reports on a range [s].  ``repr``
    omits the key.
    """

    host: str
    port: int
    key: bytes
    job: str
    certificate_pem: str | None = None
    heartbeat_s: float = 0.25
    wait: WaitSettings = WaitSettings()
    reader: RangeReader | None = None
    relay: RelayDoor | None = None
    call_timeout_s: float | None = None
    report_s: float = 0.1

    def __repr__(self) -> str:
        tls = "tls" if self.certificate_pem else "plain"
        return f"Endpoint({self.host}:{self.port}, job={self.job!r}, {tls}, key=***)"


class BoltNotice(msgspec.Struct, frozen=True, gc=False):
    """What the runner of the bolts reports about one of them (``bolt`` "" means all of them).

    ``restarting``: it ended and comes back.  ``returned``: a call has returned that took too long,
    so that the bolt had gone on without its thread.  ``waiting``: there is no slot for it yet,
    which is not an error.  ``warning``: the run goes on, but something else may suffer.
    ``fatal``: it will not come back; ``detail`` says why, ``remedy`` what to do.
    """

    bolt: str
    kind: Literal["starting", "restarting", "returned", "waiting", "warning", "fatal"]
    detail: str = ""
    remedy: str = ""


def all_fatal(notify: Callable[[BoltNotice], None]) -> Callable[[FlowctlError], None]:
    """Return the notice that ends the run when a thread that supervises bolts has died."""
    return lambda error: notify(BoltNotice("", "fatal", error.problem, error.remedy))


class Bolts(Protocol):
    """Runs ``count`` bolts that connect to the spout: on Spark, or as threads."""

    count: int

    def listen_host(self) -> str:
        """The driver's address that the bolts can reach: ``127.0.0.1`` if they are local."""

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        """Start the bolts ``b1`` … ``b<count>`` and return at once; restart what dies, with
        back-off.

        ``notify`` may be called from any thread until :meth:`stop` returns.  Raises
        :class:`flowctl.errors.ConfigError` for a ``process`` that can't be shipped.
        """

    def stop(self, *, timeout_s: float) -> None:
        """End all bolts: those that received END leave by themselves, the others are cancelled."""


@runtime_checkable
class BindingBolts(Protocol):
    """Bolts that know where the driver has to listen if it can't on the address that they reach.

    Such as the pod's address where they reach a service's.
    """

    def bind_host(self) -> str:
        """The address to listen on; "": the one of :meth:`Bolts.listen_host`."""


@runtime_checkable
class NamedBolts(Protocol):
    """Bolts with names other than ``b1`` … ``b<count>``; a bolt with any other name is refused."""

    @property
    def names(self) -> Sequence[str]:
        """The name of each bolt."""


def names_of(bolts: Bolts) -> Sequence[str]:
    """Return ``b1`` … ``b<count>``, as the port says, or the names of :class:`NamedBolts`."""
    if isinstance(bolts, NamedBolts):
        return bolts.names
    return [f"b{number}" for number in range(1, bolts.count + 1)]


@runtime_checkable
class RoomyBolts(Protocol):
    """Bolts that know whether there is room for more of them."""

    def has_room(self) -> bool | None:
        """Whether one more bolt would find a slot, or time of a processor; None: unknown.

        Asked four times a second; must not block.
        """


@runtime_checkable
class EndingBolts(Protocol):
    """Bolts that can be killed individually in whatever state they are: processes, not threads."""

    def end(self, bolt: str, *, reason: str, host: str = "", pid: int = 0) -> None:
        """Kill ``bolt``, which is frozen or cut off, and restart it as after any death.

        ``host`` and ``pid`` are what the bolt reported when it connected ("" and 0: nothing).  When
        this returns, or soon after, its process is gone, and so are its locks. Called in a thread
        of its own; an unknown bolt is ignored.
        """
