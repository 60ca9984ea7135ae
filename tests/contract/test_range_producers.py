"""Sources by reference: one suite for all of them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import pytest

from flowctl.range_ports import RangeProducer
from flowctl.testing.range_conformance import RangeConformance
from flowctl_files import ParquetRanges, TextRanges
from tests.range_parts import NumberRanges, NumberReader

TEXTS = {
    "a.log": b"one\ntwo \xc3\xa9\r\n\nfour\n",
    "b.log": b"only, and without a newline",
    "c.log": b"\xef\xbb\xbf" + b"x" * 300 + b"\ny\n",
    "empty.log": b"",
}


class TestTextRanges(RangeConformance):
    @pytest.fixture(autouse=True)
    def source(self, tmp_path):
        for name, data in TEXTS.items():
            (tmp_path / name).write_bytes(data)
        (tmp_path / "d.log.gz").write_bytes(gzip.compress(b"a\nb\nc\n"))
        self.paths = str(tmp_path / "*.log*")

    def producer(self) -> RangeProducer:
        return TextRanges(self.paths)


class TestTextRangesBehindUrls(RangeConformance):
    @pytest.fixture(autouse=True)
    def source(self) -> Iterator[None]:
        fsspec = pytest.importorskip("fsspec")
        files = fsspec.filesystem("memory")
        files.store.clear()
        for name, data in TEXTS.items():
            files.pipe(f"/logs/{name}", data)
        yield
        files.store.clear()

    def producer(self) -> RangeProducer:
        return TextRanges("memory://logs/*.log")


class TestTextRangesOfAnArrowFileSystem(RangeConformance):
    @pytest.fixture(autouse=True)
    def source(self, tmp_path):
        pytest.importorskip("pyarrow")
        for name, data in TEXTS.items():
            (tmp_path / name).write_bytes(data)
        self.paths = f"{tmp_path}/*.log"

    def producer(self) -> RangeProducer:
        return TextRanges(self.paths, filesystem=_local_of_arrow)


def _local_of_arrow() -> object:
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem()


class _Numbers(NumberReader):
    def __init__(self) -> None:
        super().__init__(block=3)

    def open(self, partition, start, stop, identity):
        from flowctl.errors import SourceError

        if partition == "no-such-partition":
            raise SourceError("no-such-partition", remedy="Name another.")
        self.closed.clear()
        return super().open(partition, start, stop, identity)

    def __reduce__(self):
        return _Numbers, ()


class TestNumbers(RangeConformance):
    """The source of the bolt's own tests keeps to the contract too."""

    has_identity = False

    def producer(self) -> RangeProducer:
        class Producer(NumberRanges):
            def reader(self) -> NumberReader:
                return _Numbers()

        return Producer(a=7, b=1)


class TestParquetRanges(RangeConformance):
    columns: tuple[str, ...] | None = None
    wanted: Any = None

    @pytest.fixture(autouse=True)
    def source(self, tmp_path):
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        for year, rows in ((2025, 7), (2026, 1), (2027, 0)):
            folder = tmp_path / f"year={year}"
            folder.mkdir()
            table = pyarrow.table({"n": range(rows), "word": [f"w{n}" for n in range(rows)]})
            parquet.write_table(table, folder / "part-0.parquet", row_group_size=3)
        self.paths = tmp_path

    def producer(self) -> RangeProducer:
        return ParquetRanges(
            self.paths, columns=self.columns, filter=self.wanted and list(self.wanted)
        )


class TestParquetRangesFiltered(TestParquetRanges):
    columns = ("word", "year")
    wanted = (("n", "in", (0, 2, 5)), ("year", "<", 2027))
