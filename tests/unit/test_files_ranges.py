"""TextRanges: what is named when a file is not what the driver saw, and what never travels."""

from __future__ import annotations

import gzip
import os
import pickle

import pytest

from flowctl.bolts.range_ahead import ReadAhead
from flowctl.core.messages import RangeEmission
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import ConfigError, SourceError
from flowctl_files import TextRanges, _text_blocks
from flowctl_files._stores import lasting


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(1_000)))
    return path


def opened(source: TextRanges, path) -> tuple[object, object]:
    extent = source.extents(Checkpoint())[str(path)]
    return extent, source.reader().open(str(path), extent.start, extent.stop, extent.identity)


def test_a_batch_of_lines_is_a_sequence_of_records(path, monkeypatch):
    monkeypatch.setattr(_text_blocks, "BLOCK_BYTES", 1 << 20)
    _, blocks = opened(TextRanges(path), path)
    [block] = blocks
    batch = block.batch_records(10, 20)
    assert len(batch) == 10
    assert [record.value for record in batch] == [f"line {n}" for n in range(10, 20)]
    assert batch[-1].value == "line 19"
    assert [record.value for record in batch[2:4]] == ["line 12", "line 13"]
    with pytest.raises(IndexError):
        batch[10]
    # One that is handed out is the one that is found again: batch.reject(record) is cheap.
    for index, record in enumerate(block.batch_records(0, 1_000)):
        assert block.batch_records(0, 1_000)[index] is record


def test_a_file_that_changed_since_the_driver_saw_it_is_refused(path):
    source = TextRanges(path)
    extent = source.extents(Checkpoint())[str(path)]
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match="changed during the run") as caught:
        next(source.reader().open(str(path), 0, extent.stop, extent.identity))
    assert str(path) in caught.value.problem
    assert "TextLines" in caught.value.remedy


def test_a_file_that_changes_while_it_is_read_does_not_finish(path, monkeypatch):
    monkeypatch.setattr(_text_blocks, "BLOCK_BYTES", 1_000)
    extent, blocks = opened(TextRanges(path), path)
    first = next(blocks)
    path.write_bytes(b"other\n" * 2_000)
    with pytest.raises(SourceError, match="changed during the run"):
        next(blocks)
    assert first.stop < extent.stop


def test_the_part_of_a_range_that_stays_after_a_split_is_compared_too(path, monkeypatch):
    """The kind: any block may become the range's last, so each is compared before its records are
    processed.  The comparison belonged to the last one as the range was cut at first."""
    monkeypatch.setattr(_text_blocks, "BLOCK_BYTES", 1_000)
    source = TextRanges(path)
    extent = source.extents(Checkpoint())[str(path)]
    ends = [extent.stop]
    frame = RangeEmission(1, "b1", 1, str(path), (), None, 0, None, 0, extent.stop, extent.identity)
    ahead = ReadAhead(source.reader(), frame, stop=lambda: ends[-1])
    ahead.start()
    ahead.wait()  # the first block is there, and the second is read when that is taken
    os.utime(path, ns=(1, 1))
    ends.append(1_500)  # another bolt has the rest: the second block is the last
    assert ahead.take().stop < 1_500
    ahead.wait()
    with pytest.raises(SourceError, match="changed during the run"):
        ahead.take()


def test_a_file_that_is_cut_off_while_it_is_read_does_not_look_finished(path, monkeypatch):
    monkeypatch.setattr(_text_blocks, "BLOCK_BYTES", 1_000)
    _, blocks = opened(TextRanges(path), path)
    next(blocks)
    os.truncate(path, 500)
    with pytest.raises(SourceError, match="changed during the run"):
        list(blocks)


def test_damaged_data_are_named_after_the_good_lines(tmp_path):
    path = tmp_path / "a.log.gz"
    text = "".join(f"line {n} {n * n}\n" for n in range(50_000)).encode()
    path.write_bytes(gzip.compress(text)[:-1_000])
    _, blocks = opened(TextRanges(path), path)
    values = []
    with pytest.raises(SourceError, match="gzip data are damaged or truncated"):
        for block in blocks:
            values += [record.value for record in block.batch_records(0, len(block))]
    assert len(values) > 10_000
    assert values == text.decode().splitlines()[: len(values)]


def test_a_line_that_is_too_long_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(_text_blocks, "BLOCK_BYTES", 10)
    monkeypatch.setattr(_text_blocks, "_REST_BYTES", 10)
    path = tmp_path / "a.log"
    path.write_bytes(b"ok\n" + b"x" * 200 + b"\n")
    for source in (TextRanges(path, max_line_bytes=100),):
        _, blocks = opened(source, path)
        with pytest.raises(SourceError, match="byte 3: longer than 100 bytes"):
            list(blocks)
    monkeypatch.setattr(_text_blocks, "BLOCK_BYTES", 1_000)
    _, blocks = opened(TextRanges(path, max_line_bytes=100), path)
    with pytest.raises(SourceError, match="byte 3: longer than 100 bytes"):
        list(blocks)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "cp037"])
def test_encodings_whose_lines_cannot_be_found_are_refused(encoding):
    with pytest.raises(ConfigError, match="lines can't be found"):
        TextRanges("a.log", encoding=encoding)


def test_a_checkpoint_of_another_file_or_source_is_refused(path):
    size = path.stat().st_size
    for position, said in ((size, "is another file"), ((0, 1), "not one of this source")):
        checkpoint = Checkpoint({str(path): PartitionCheckpoint(position)})
        with pytest.raises(SourceError, match=said):
            TextRanges(path).extents(checkpoint)
    TextRanges(path).extents(Checkpoint({str(path): PartitionCheckpoint(size - 1)}))


def test_secrets_of_the_driver_do_not_travel():
    for options in ({"secret": "x"}, {"client_kwargs": {"aws_secret_access_key": "x"}}):
        with pytest.raises(ConfigError, match="would travel to the workers"):
            TextRanges("s3://b/a.log", storage_options=options)
    with pytest.raises(ConfigError, match="whose credentials would travel"):
        TextRanges("b/a.log", filesystem=object())
    TextRanges("s3://b/a.log", storage_options={"endpoint_url": "http://x", "anon": False})


def test_a_file_system_is_made_where_it_is_read(path):
    source = TextRanges(str(path), filesystem=_local)
    made_here = source.extents(Checkpoint())
    assert source.stores._made is not None
    reader = pickle.loads(pickle.dumps(source.reader()))
    assert reader.stores._made is None
    [(name, extent)] = made_here.items()
    [first, *_] = reader.open(name, 0, extent.stop, extent.identity)
    assert first.batch_records(0, 1)[0] == Record(0, "line 0")


def _local() -> object:
    fsspec = pytest.importorskip("fsspec")
    return fsspec.filesystem("file")


@pytest.mark.parametrize(
    ("error", "for_good"),
    [
        (FileNotFoundError(2, "No such file or directory"), True),
        (PermissionError(13, "Permission denied"), True),
        (OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body."), True),
        (OSError("AWS Error NO_SUCH_BUCKET during GetObject operation"), True),
        (OSError("When reading information for key: AWS Error INVALID_ACCESS_KEY_ID"), True),
        (OSError("AWS Error SLOW_DOWN during GetObject operation"), False),
        (OSError("AWS Error NETWORK_CONNECTION during HeadObject operation: timed out"), False),
        (ConnectionResetError(104, "Connection reset by peer"), False),
    ],
)
def test_only_what_asking_again_cannot_mend_is_a_source_error(error, for_good):
    assert isinstance(lasting("s3://b/a.log", error), SourceError) == for_good


def test_a_store_that_refuses_this_machine_is_not_a_store_without_files(monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    files = type(fsspec.filesystem("memory"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError("AWS Error ACCESS_DENIED during ListObjectsV2 operation")

    monkeypatch.setattr(files, "ls", refuse)
    monkeypatch.setattr(files, "info", refuse)
    for path in ("memory://logs/*.log", "memory://logs/a.log"):
        with pytest.raises(SourceError, match="ACCESS_DENIED"):
            TextRanges(path).extents(Checkpoint())
    monkeypatch.undo()
    for path in ("memory://nowhere/*.log", "memory://nowhere/a.log"):
        with pytest.raises(SourceError, match="no file matches"):
            TextRanges(path).extents(Checkpoint())


def test_what_a_file_was_is_told_with_times_that_people_read(path):
    source = TextRanges(str(path))
    os.utime(path, ns=(0, 1_700_000_000_000_000_001))
    extent, _ = opened(source, path)
    os.utime(path, ns=(0, 1_700_000_000_000_000_002))
    said = r"it was \d+ bytes of 2023-11-14 22:13:20\.000000001 UTC, and is now .*\.000000002 UTC"
    for end in (None, extent.identity):
        saved = PartitionCheckpoint(5, 1, mark=extent.identity, end=end)
        with pytest.raises(SourceError, match=said):
            source.extents(Checkpoint({str(path): saved}))
    with pytest.raises(SourceError, match=r"it was \d+ bytes of 2023-11-14 22:13:20\.000000001"):
        list(source.reader().open(str(path), 0, extent.stop, extent.identity))
