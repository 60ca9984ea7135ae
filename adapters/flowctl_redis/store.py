"""The checkpoint store: fenced, monotone, atomic."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from flowctl.arguments import check_arguments
from flowctl.core.records import Checkpoint, Position
from flowctl.core.stored_job import StoredJob, ahead, fenced, goes_back, no_name, set_back
from flowctl.errors import CheckpointUnavailableError, ConfigError, InternalError
from flowctl.relay_ports import Relay
from flowctl_redis import schema, scripts
from flowctl_redis.clients import new_client
from flowctl_redis.held import Held, Plan
from flowctl_redis.names import to_bytes, to_text
from flowctl_redis.translated import expected, translate
from flowctl_redis.url import URL_VARIABLE, checked, is_tls, shown

_Result = TypeVar("_Result")
_SCAN_COUNT = 1000  # keys scanned per call: some 0.3 ms of the server's time
_SHOWN = b":shown"  # behind a job's key
_LEARNED = b":learned"
_SHOWN_FOR_S = 86_400  # a day: long enough to see in the morning how the night's runs ended
_NOTHING: dict[bytes, bytes] = {}
# Tries to change a state that was read.  Only a save that was given up but arrives late can come
# between, or, for a rewind, the saves of a running driver.
_TRIES = 5


class RedisCheckpointStore:
    """A :class:`flowctl.ports.CheckpointStore` in Redis or Valkey (5.0 or newer).

    ``url``: ``redis://[user:password@]host:port/db``, ``rediss://`` or ``unix://``; by default that
    of the variable FLOWCTL_REDIS_URL.  ``prefix`` begins every key.  ``timeout_s`` bounds each
    answer of the server [s].  ``client``: a redis-py client of your own (Sentinel, credential
    provider) instead of a URL; it must not decode responses, and you close it yourself.

    Nothing is connected before the first call.  Thread-safe; saves of one object go one by one.
    After an error the object stays usable: the next call reconnects.  Calls are never retried here;
    the caller may repeat a save, a load or an acquire, whatever happened to it.
    """

    @check_arguments("prefix")
    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str = "flowctl",
        timeout_s: float = 2.0,  # a save takes 1 ms; the sender must not wait much longer
        client: Any = None,
    ) -> None:
        if not prefix or "{" in prefix:
            raise ConfigError("prefix", "is empty or holds a {.", remedy="Use a plain word.")
        given: Any = timeout_s
        if not isinstance(given, int | float) or not 0 < given < float("inf"):
            problem = f"{timeout_s!r} is not a number of seconds above 0."
            raise ConfigError("timeout_s", problem, remedy="Leave it out, or give 2.0.")
        url = url if url is not None else os.environ.get(URL_VARIABLE) or None
        if url is None and client is None:
            raise ConfigError(
                "redis",
                f"no URL is given, and {URL_VARIABLE} is not set.",
                remedy="Give redis://host:6379/0. Without a server, leave checkpoint= out: then"
                " checkpoints are files of this machine (flowctl.FileCheckpointStore).",
            )
        # empty if the caller gave a client
        self._url = checked(url) if url is not None and client is None else ""
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._own_client = client
        self._client: Any = client
        self._held: dict[str, Held] = {}  # under the save lock: states of this driver's jobs
        self._acquired: dict[str, int] = {}  # their epochs
        self._connect_lock = threading.Lock()
        self._save_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"RedisCheckpointStore({self.address}, prefix={self._prefix!r})"

    @property
    def address(self) -> str:
        """The server's address for messages, without secrets."""
        if self._own_client is not None:
            return "a client of the caller's"
        return shown(self._url)

    @property
    def place(self) -> str:
        """Where the checkpoint is, as a run reports it."""
        return f"Redis at {self.address}"

    @property
    def survives(self) -> bool:
        """Whether saved checkpoints outlive this process, unlike those in fakeredis."""
        return not type(self._own_client).__module__.startswith("fakeredis")

    def acquire(self, job: str) -> int:
        """See :class:`flowctl.ports.CheckpointStore`."""
        with self._save_lock:
            self._held.pop(job, None)
            epoch = int(self._script("acquire", job, [schema.SCHEMA])[0])
            self._acquired[job] = epoch
            return epoch

    def load(self, job: str) -> Checkpoint:
        """See :class:`flowctl.ports.CheckpointStore`."""
        with self._save_lock:
            held = self._read(job, self._acquired.get(job, 0))
            if held.epoch and job not in self._held:
                self._held[job] = held  # so that the first save sends only changes
            return Checkpoint(dict(held.partitions))

    def inspect(self, job: str) -> StoredJob:
        """Return everything that is stored about ``job``, for display."""
        key, fields = self._key(job), self._fields(job)
        return StoredJob(
            job=job,
            epoch=schema.decode_epoch(key, fields),
            saved_at_unix_ms=schema.decode_number(key, fields, "saved_at_unix_ms"),
            checkpoint=schema.decode_checkpoint(key, fields),
        )

    def save(self, job: str, checkpoint: Checkpoint, *, epoch: int) -> None:
        """See :class:`flowctl.ports.CheckpointStore`.

        Sends only what differs from the server's state: ``checkpoint`` may have all partitions, or
        only those that moved since the last successful save.  After a time-out it is unknown
        whether the save arrived; repeating it is safe, even with more partitions.  A server that
        lost earlier saves of this object gets them again.
        """
        with self._save_lock:
            wanted = checkpoint.partitions
            held = self._held.get(job)
            if held is None or held.epoch != epoch:
                held = self._read(job, epoch)
            for _ in range(_TRIES):
                plan = held.plan(wanted)
                status, detail = self._send(job, held, plan)
                if status == b"ok":
                    held.apply(plan, detail[0])
                    self._held[job] = held
                    return
                if status != b"resend":
                    self._refuse(job, epoch, status, detail)
                wanted = held.partitions | wanted
                held = self._read(job, epoch)
        raise CheckpointUnavailableError(
            f"what {self.address} holds of job {job!r} changed {_TRIES} times while it was saved.",
            remedy="It is tried again; if this persists, find out who else writes this key.",
        )

    def jobs(self) -> Sequence[str]:
        """See :class:`flowctl.ports.CheckpointStore`.  Walks all keys of the database."""
        return self._call(self._list_jobs, key=None)

    def rewind(self, job: str, partition: str, position: Position | None) -> None:
        """See :class:`flowctl.ports.CheckpointStore`.

        If the number of records before that position is unknown, it is stored as 0.
        """
        for _ in range(_TRIES):
            status, detail = self._rewind(job, partition, position)
            if status != b"changed":
                break
        if status == b"changed":
            raise CheckpointUnavailableError(
                f"what {self.address} holds of job {job!r} changed {_TRIES} times meanwhile.",
                remedy="Give the command again.",
            )
        if status != b"ok":
            self._refuse(job, 0, status, detail)

    def _rewind(
        self, job: str, partition: str, position: Position | None
    ) -> tuple[bytes, list[bytes]]:
        fields = self._fields(job)
        held = schema.decode_held(self._key(job), fields, epoch=0)
        value = set_back(job, held.partitions, partition, position)
        stored = held.partitions[partition]
        arguments = [
            schema.partition_field(partition),
            schema.encode_partition(partition, value),
            b"" if held.is_loose(partition) else schema.encode_partition(partition, stored),
            fields.get(b"blocks", b"0"),
        ]
        status, detail = self._reply("rewind", self._key(job), arguments)
        if status == b"ahead":
            raise ahead(position, stored.position)
        return status, detail

    def clear(self, job: str) -> bool:
        """See :class:`flowctl.ports.CheckpointStore`.  Also removes what can't be read."""
        self.remember(job, b"")
        return self._script("clear", job, [schema.SCHEMA])[0] == b"1"

    def lease(self, job: str, owner: str, for_s: float) -> str:
        """See :class:`flowctl.runtime.standby.LeasingStore`."""
        arguments = [to_bytes(owner), str(round(for_s * 1000)).encode()]
        return to_text(self._reply("lease", self._key(job) + b":lease", arguments)[1][0])

    def show(self, job: str, shown: bytes) -> None:
        """See :class:`flowctl.ports.ShowingStore`."""
        key = self._key(job) + _SHOWN
        self._call(lambda client: client.set(key, shown, ex=_SHOWN_FOR_S), key=key)

    def shown(self, job: str) -> bytes:
        """See :class:`flowctl.ports.ShowingStore`."""
        return self._value(self._key(job) + _SHOWN)

    def all_shown(self) -> Sequence[bytes]:
        """See :class:`flowctl.ports.ShowingStore`.  Walks all keys."""
        pattern = to_bytes(_glob_escaped(self._prefix) + ":{*}") + _SHOWN
        return self._call(lambda client: _values(client, pattern), key=None)

    def remember(self, job: str, learned: bytes) -> None:
        """See :class:`flowctl.ports.RememberingStore`."""
        key = self._key(job) + _LEARNED
        self._call(lambda c: c.set(key, learned) if learned else c.delete(key), key=key)

    def remembered(self, job: str) -> bytes:
        """See :class:`flowctl.ports.RememberingStore`."""
        return self._value(self._key(job) + _LEARNED)

    def _value(self, key: bytes) -> bytes:
        return self._call(lambda client: client.get(key) or b"", key=key)

    def open_relay(self, spout: tuple[str, int]) -> Relay:
        """See :class:`flowctl.relay_ports.RelayingStore`.  It needs a URL, not a ``client``."""
        from flowctl_redis.relay import relay_of

        return relay_of(self._url or None, self._prefix, spout)

    def close(self) -> None:
        """See :class:`flowctl.ports.CheckpointStore`.  The next call would reconnect."""
        with self._connect_lock:
            client, self._client = self._client, self._own_client
            if client is not self._own_client:
                client.close()

    # -- saving ---------------------------------------------------------------------------

    def _read(self, job: str, epoch: int) -> Held:
        return schema.decode_held(self._key(job), self._fields(job), epoch=epoch)

    def _send(self, job: str, held: Held, plan: Plan) -> tuple[bytes, list[bytes]]:
        back = b"" if plan.goes_back is None else schema.partition_field(plan.goes_back)
        gone, written = schema.encode_plan(plan, held.next_block_after(plan))
        arguments = [
            schema.SCHEMA_BLOCKS if plan.blocks else schema.SCHEMA,
            str(held.epoch).encode(),
            held.revision,
            str(time.time_ns() // 1_000_000).encode(),
            back,
            str(len(gone)).encode(),
        ]
        return self._reply("save", self._key(job), arguments + gone + written)

    # -- talking to the server ------------------------------------------------------------

    def _script(self, name: str, job: str, arguments: list[bytes]) -> list[bytes]:
        status, detail = self._reply(name, self._key(job), arguments)
        if status != b"ok":
            self._refuse(job, 0, status, detail)
        return detail

    def _reply(self, name: str, key: bytes, arguments: list[bytes]) -> tuple[bytes, list[bytes]]:
        reply = self._call(lambda client: scripts.run(client, name, key, arguments), key=key)
        return reply[0], reply[1:]

    def _fields(self, job: str) -> dict[bytes, bytes]:
        key = self._key(job)
        return self._call(lambda client: client.hgetall(key) or _NOTHING, key=key)

    def _list_jobs(self, client: Any) -> list[str]:
        pattern = to_bytes(_glob_escaped(self._prefix) + ":{*}")
        keys = sorted(set(client.scan_iter(match=pattern, count=_SCAN_COUNT, _type="HASH")))
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.hexists(key, "saved_at_unix_ms")
        saved = pipe.execute() if keys else []
        return [
            schema.job_of(self._prefix, k)
            for k, is_saved in zip(keys, saved, strict=True)
            if is_saved
        ]

    def _call(self, operation: Callable[[Any], _Result], *, key: bytes | None) -> _Result:
        """Run ``operation`` on the client; translate redis-py's errors into flowctl's."""
        errors = expected()
        try:
            return operation(self._connected())
        except errors as error:
            fault = translate(
                error,
                address=self.address,
                key=key,
                timeout_s=self._timeout_s,
                tls=is_tls(self._url),
            )
        # Outside the except block: the cause, whose frames hold the URL, is not chained.
        raise fault

    def _connected(self) -> Any:
        with self._connect_lock:
            if self._client is None:
                self._client = new_client(self._url, timeout_s=self._timeout_s)
            return self._client

    # -- refusals ---------------------------------------------------------------------------

    def _key(self, job: str) -> bytes:
        if not job:
            raise no_name()
        return schema.job_key(self._prefix, job)

    def _refuse(self, job: str, epoch: int, status: bytes, detail: list[bytes]) -> NoReturn:
        key = self._key(job)
        if status == b"fenced":
            raise fenced(job, newest=int(detail[0]), ours=epoch)
        if status == b"back":
            raise goes_back(job, schema.partition_of(detail[0]))
        if status == b"schema":
            schema.check_schema(key, detail[0])
        if status == b"corrupt":
            schema.corrupt(key, f"field {to_text(detail[0])} does not decode")
        raise InternalError(f"a script answered {status!r}.", remedy="Please report this.")


def _values(client: Any, pattern: bytes) -> list[bytes]:
    keys = sorted(set(client.scan_iter(match=pattern, count=_SCAN_COUNT)))
    pipe = client.pipeline(transaction=False)  # one by one: in a cluster each key has its node
    for key in keys:
        pipe.get(key)
    return [value for value in pipe.execute() if value] if keys else []


def _glob_escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]\\^-" else c for c in text)
