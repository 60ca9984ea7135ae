"""TextLines behind URLs: the contract of a producer, and what is named, on fsspec's own memory."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("fsspec")

import fsspec

from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import ConfigError, MissingExtraError, SourceError
from flowctl.ports import FlowProducer
from flowctl.testing.producer_conformance import ProducerConformance
from flowctl_files import TextLines


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pipe("/logs/a.log", b"one\ntwo\r\nthree\n")
    files.pipe("/logs/b.log", b"only, and without a newline")
    files.pipe("/logs/c.log.gz", gzip.compress(b"x\ny\n"))
    files.pipe("/logs/d.log", b"")
    yield
    files.store.clear()


@pytest.mark.req("S22")
class TestRemoteLines(ProducerConformance):
    def producer(self) -> FlowProducer:
        return TextLines("memory://logs/*.log*")


def values(paths: str | list[str], checkpoint: Checkpoint | None = None) -> list[str]:
    producer = TextLines(paths)
    producer.open(checkpoint or Checkpoint())
    found: list[str] = []
    while (chunk := producer.poll(100)) is not None:
        found += [record.value for record in chunk.records]
    producer.close()
    return found


def test_files_are_named_by_their_urls_and_may_stand_beside_local_ones(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    with open("a.log", "w", encoding="utf-8") as file:
        file.write("local\n")
    paths = ["memory://logs/c.log.gz", "a.log"]
    assert TextLines(paths).partitions() == ["a.log", "memory:///logs/c.log.gz"]
    assert values(paths) == ["local", "x", "y"]


def test_a_file_that_is_another_one_is_named() -> None:
    saved = PartitionCheckpoint(position=(5, 2), records=2)
    with pytest.raises(SourceError, match="not the file that was read before"):
        values("memory://logs/a.log", Checkpoint({"memory:///logs/a.log": saved}))


@pytest.mark.parametrize(
    ("paths", "options", "error", "says"),
    [
        ("memory://logs/none.log", {}, SourceError, "no file matches 'memory://logs/none.log'"),
        ("memory://none/*.log", {}, SourceError, "no file matches"),
        ("nonsense://a/b.log", {}, ConfigError, "nonsense"),
        ("dropbox://a/b.log", {}, ConfigError, "dropbox"),
        ("memory://logs/a.log", {"follow": True}, ConfigError, "can't be followed"),
        ("ftp://user:hush@host/a.log", {}, ConfigError, "a URL holds a password"),
    ],
)
def test_what_can_not_be_read_is_named(
    paths: str, options: dict[str, bool], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        TextLines(paths, follow=options.get("follow", False)).open(Checkpoint())
    assert "hush" not in str(caught.value)


def test_without_fsspec_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"flowctl-spark\[remote\]"):
        TextLines("memory://logs/a.log").open(Checkpoint())
