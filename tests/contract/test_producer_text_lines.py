"""TextLines keeps the contract of a producer, plain, compressed and as bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from flowctl.ports import FlowProducer
from flowctl.testing.producer_conformance import ProducerConformance
from flowctl_files import TextLines

_CONTENTS = {
    "a.log": "one\ntwo\r\n\ndrei ä €\n\r\nlast without newline".encode(),
    "b.log": b"only\n",
    "empty.log": b"",
    "sub/c.log": b"".join(b"%d\n" % number for number in range(20)),
}


@pytest.mark.req("S22")
class TestPlainFiles(ProducerConformance):
    @pytest.fixture(autouse=True)
    def source(self, tmp_path: Path) -> None:
        self.root = tmp_path
        (tmp_path / "sub").mkdir()
        for name, data in _CONTENTS.items():
            (tmp_path / name).write_bytes(data)

    def producer(self) -> FlowProducer:
        return TextLines(self.root / "**" / "*.log")


@pytest.mark.req("S22")
class TestBytes(TestPlainFiles):
    def producer(self) -> FlowProducer:
        # Bytes don't survive an untyped decode as str: they come back as bytes.
        return TextLines(self.root / "**" / "*.log", encoding=None)


@pytest.mark.req("S22")
class TestGzip(ProducerConformance):
    @pytest.fixture(autouse=True)
    def source(self, tmp_path: Path) -> None:
        self.root = tmp_path
        for name, data in _CONTENTS.items():
            half = len(data) // 2  # two members, as logrotate and bgzip write them
            path = tmp_path / (name.replace("/", "-") + ".gz")
            path.write_bytes(gzip.compress(data[:half]) + gzip.compress(data[half:]))

    def producer(self) -> FlowProducer:
        return TextLines(self.root / "*.gz")


@pytest.mark.req("S22")
class TestSmallBlocks(TestPlainFiles):
    """Lines that are cut by block ends everywhere."""

    @pytest.fixture(autouse=True)
    def blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("flowctl_files._text_blocks.BLOCK_BYTES", 3)
