"""The manifest of a job's results: small files of JSON lines, one for each flush, beside them.

Object stores can't append, so each flush is a file of its own, which appears as a whole.  When a
run begins it writes all that counts into one file, the base, and removes the older ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import msgspec

from flowctl.checksums import with_crc, without_crc
from flowctl.errors import (
    CheckpointCorruptError,
    CheckpointUnavailableError,
    InfrastructureError,
)
from flowctl.failure.classify import store_denies
from flowctl_apply._places import Place

if TYPE_CHECKING:
    from flowctl.runtime.receipts import Entry, Segment

# Names that begin with an underscore are not data for Spark and for pyarrow.
ROOT = "_flowctl"
# The first one had no checksums; it is read still.
VERSION = 2
_NAME = re.compile(r"(\d{20})-([0-9a-f]+)-(\d{8})\.jsonl")
# A driver that begins removes what it has adopted; another one that reads at that moment starts
# over, each time with a newer base.
_READS_MAX = 10


class _Bytes(msgspec.Struct):
    base64: bytes


class _Line(msgspec.Struct, omit_defaults=True):
    """One entry.  A receipt that is UTF-8 stands there as text, so that people can read it."""

    partition: str
    start: int
    stop: int
    records: int
    receipts: list[str | _Bytes] = []


class _Version(msgspec.Struct):
    version: int


class _Head(_Version):
    entries: int


def directory_of(job: str) -> str:
    """Return the directory of ``job`` below the place of its results."""
    return f"{ROOT}/{quote(job, safe='')}"


def jobs_at(place: Place) -> list[str]:
    """Return the names of the jobs that have results at ``place``."""
    found = {one.name.split("/")[1] for one in place.names(ROOT, recursive=True)}
    return sorted(unquote(name) for name in found)


class PlaceManifest:
    """Implements :class:`flowctl.runtime.receipt_store.Manifest` at a place."""

    def __init__(self, place: Place, job: str) -> None:
        self._place = place
        self._directory = directory_of(job)
        self.where: str = place.url

    def segments(self) -> Sequence[Segment]:
        """See the protocol."""
        with _retriable(self.where):
            for _ in range(_READS_MAX):
                try:
                    return [self._read(name) for name in (*self._list("bases"), *self._list("log"))]
                except FileNotFoundError:
                    continue
        raise CheckpointUnavailableError(
            f"other drivers replace the manifest in {self.where} again and again.",
            remedy="Run one driver at a time under one name.",
        )

    def newest_base(self) -> tuple[int, str] | None:
        """See the protocol."""
        with _retriable(self.where):
            names = self._list("bases")
        if not names:
            return None
        epoch, token, _ = _parts(max(names, key=lambda name: _parts(name)[:2]))
        return epoch, token

    def append(self, segment: Segment) -> None:
        """See the protocol."""
        with _retriable(self.where):
            name = self._name_of(segment)
            self._place.put(name, with_crc(name, encode(segment)))

    def forget_before(self, epoch: int, token: str) -> None:
        """See the protocol."""
        with _retriable(self.where):
            for kind in ("log", "bases"):
                old = [name for name in self._list(kind) if _parts(name)[:2] < (epoch, token)]
                self._place.delete(old)

    def _name_of(self, segment: Segment) -> str:
        kind = "bases" if segment.is_base else "log"
        file = f"{segment.epoch:020d}-{segment.token}-{segment.number:08d}.jsonl"
        return f"{self._directory}/{kind}/{file}"

    def _list(self, kind: str) -> list[str]:
        files = self._place.names(f"{self._directory}/{kind}")
        return [file.name for file in files if _NAME.search(file.name)]

    def _read(self, name: str) -> Segment:
        from flowctl.runtime.receipts import Segment

        epoch, token, number = _parts(name)
        is_base = "/bases/" in name
        entries = decode(name, self._place.get(name), self.where)
        return Segment(epoch, token, number, tuple(entries), is_base)


def _parts(name: str) -> tuple[int, str, int]:
    found = _NAME.search(name)
    assert found is not None
    return int(found[1]), found[2], int(found[3])


def encode(segment: Segment) -> bytes:
    """Return the contents of the segment's file, without their checksum."""
    lines = [msgspec.json.encode(_Head(VERSION, len(segment.entries)))]
    for one in segment.entries:
        receipts = [_readable(receipt) for receipt in one.receipts]
        lines.append(
            msgspec.json.encode(_Line(one.partition, one.start, one.stop, one.records, receipts))
        )
    return b"\n".join(lines) + b"\n"


def checked(name: str, data: bytes) -> bytes:
    """Return the JSON of the file ``name``; raise ``ValueError`` if it is not what was written."""
    text, has_crc = without_crc(name, data)
    first, _, _ = text.partition(b"\n{")
    version = msgspec.json.decode(first, type=_Version).version
    if version != (VERSION if has_crc else VERSION - 1):
        raise ValueError(f"version {version} with{'' if has_crc else 'out'} a checksum")
    return text


def decode(name: str, data: bytes, where: str) -> list[Entry]:
    """Return the entries of a segment's file; raise :class:`CheckpointCorruptError`."""
    from flowctl.runtime.receipts import Entry

    try:
        first, *rest = checked(name, data).splitlines() or [b""]
        head = msgspec.json.decode(first, type=_Head)
        lines = [msgspec.json.decode(line, type=_Line) for line in rest]
        if head.entries != len(lines):
            raise ValueError(f"it has {len(lines)} of {head.entries} entries")
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheckpointCorruptError(
            f"{where}/{name} is not part of a manifest, or is damaged: {error}.",
            remedy="Restore the file. To process everything again, remove the results or give"
            " another out.",
        ) from error
    return [
        Entry(
            one.partition,
            one.start,
            one.stop,
            one.records,
            tuple(
                receipt.encode() if isinstance(receipt, str) else receipt.base64
                for receipt in one.receipts
            ),
        )
        for one in lines
    ]


def _readable(receipt: bytes) -> str | _Bytes:
    try:
        return receipt.decode()
    except UnicodeDecodeError:
        return _Bytes(receipt)


@contextmanager
def _retriable(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Without the right to it, waiting would go on until the run gives up.
        kind = InfrastructureError if store_denies(error) else CheckpointUnavailableError
        raise kind(
            f"the manifest in {where} can't be read or written: {error}.",
            remedy="Check that the path exists, and that this machine may read and write there.",
        ) from error
