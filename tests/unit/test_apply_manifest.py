"""The manifest of results in files: on a local disk, and through pyarrow's file systems."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from pickle import dumps, loads

import pytest

from flowctl.errors import (
    CheckpointCorruptError,
    CheckpointUnavailableError,
    ConfigError,
    InfrastructureError,
)
from flowctl.runtime.receipts import Entry, Segment
from flowctl_apply._places import ArrowPlace, LocalPlace, Place, place_at
from flowctl_apply._results import PlaceManifest, encode, jobs_at

MakePlace = Callable[[Path], Place]
KINDS = [
    pytest.param(lambda path: LocalPlace(str(path)), id="local"),
    pytest.param(lambda path: ArrowPlace(path.as_uri()), id="arrow"),
]
ENTRY = Entry("part 0.parquet", 0, 10, 10, (b'{"rows":3}', b"\xff\x00"))


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make: MakePlace = request.param
    return make(tmp_path / "out")


def segment(epoch: int, number: int, *, is_base: bool = False, token: str = "aa") -> Segment:
    return Segment(epoch, token, number, (ENTRY,), is_base)


def test_a_place_puts_gets_lists_and_deletes_whole_files(place: Place) -> None:
    assert place.names("a") == []
    place.put("a/b", b"old")
    place.put("a/b", b"new")
    place.put("a/c/d", b"deep")
    assert place.get("a/b") == b"new"
    assert place.names("a") == [("a/b", 3)]
    assert place.names("a", recursive=True) == [("a/b", 3), ("a/c/d", 4)]
    place.delete(["a/b", "a/none"])
    assert place.names("a") == []
    place.delete_directory("a")
    assert place.names("a", recursive=True) == []
    with pytest.raises(FileNotFoundError):
        place.get("a/b")


def test_of_two_that_put_a_new_file_one_succeeds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.put_new("a/b", b"first")
    assert not place.put_new("a/b", b"second")

    def no_links(*names: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_links)
    assert not place.put_new("a/b", b"third")
    assert place.put_new("a/c", b"new")
    assert [place.get(f"a/{name}") for name in "bc"] == [b"first", b"new"]
    assert place.names("a") == [("a/b", 5), ("a/c", 3)], "no temporary file is left"


def test_a_file_has_a_path_of_its_own(place: Place, tmp_path: Path) -> None:
    assert place.own_path("a/b").removeprefix("file://") == str(tmp_path / "out" / "a" / "b")
    assert place.path("a/b") == f"file://{tmp_path}/out/a/b"


def test_what_is_put_survives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file first, and then the directory that names it."""
    kinds: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda fd: kinds.append(stat.S_ISDIR(os.fstat(fd).st_mode)))
    place = LocalPlace(str(tmp_path))
    place.put("a/b", b"1")
    assert place.put_new("a/c", b"2")
    assert kinds == [False, True] * 2


def test_a_place_travels_to_workers(place: Place) -> None:
    place.put("x", b"1")
    assert loads(dumps(place)).get("x") == b"1"


def test_segments_come_back_as_they_were_written(place: Place) -> None:
    manifest = PlaceManifest(place, "my/job")
    base, more = segment(7, 0, is_base=True), segment(7, 1)
    manifest.append(base)
    manifest.append(more)
    manifest.append(more)  # tried again
    assert list(manifest.segments()) == [base, more]
    assert manifest.newest_base() == (7, "aa")
    assert PlaceManifest(place, "other").newest_base() is None
    assert jobs_at(place) == ["my/job"]


def test_what_a_base_replaces_is_removed_and_what_came_after_it_is_kept(place: Place) -> None:
    manifest = PlaceManifest(place, "job")
    kept = [segment(8, 0, is_base=True), segment(9, 1, token="bb"), segment(8, 3)]
    for one in (segment(7, 0, is_base=True), segment(7, 1), *kept):
        manifest.append(one)
    assert manifest.newest_base() == (8, "aa"), "not the oldest"
    manifest.forget_before(8, "aa")
    assert sorted(manifest.segments(), key=lambda one: (one.epoch, one.number)) == [
        kept[0],
        kept[2],
        kept[1],
    ]


@pytest.mark.parametrize(("times", "is_read"), [(1, True), (9, True), (10, False)])
def test_a_manifest_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, is_read: bool
) -> None:
    """Another driver has begun, and removed what it adopted."""
    place = LocalPlace(str(tmp_path))
    manifest = PlaceManifest(place, "job")
    manifest.append(segment(7, 0, is_base=True))
    left, get = [times], place.get

    def gone_at_first(name: str) -> bytes:
        if left[0]:
            left[0] -= 1
            raise FileNotFoundError(name)
        return get(name)

    monkeypatch.setattr(place, "get", gone_at_first)
    if is_read:
        assert list(manifest.segments()) == [segment(7, 0, is_base=True)]
    else:
        with pytest.raises(CheckpointUnavailableError, match="replace the manifest"):
            manifest.segments()


def test_a_damaged_segment_is_refused_by_name(tmp_path: Path) -> None:
    place = LocalPlace(str(tmp_path))
    manifest = PlaceManifest(place, "job")
    manifest.append(segment(7, 0, is_base=True))
    (file,) = place.names("_flowctl", recursive=True)
    place.put(file.name, encode(segment(7, 0))[:40])
    with pytest.raises(CheckpointCorruptError, match=r"00000000\.jsonl is not part of a manifest"):
        manifest.segments()


def test_a_place_that_can_not_be_written_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "_flowctl").write_text("a file in the way")
    with pytest.raises(CheckpointUnavailableError, match="can't be read or written"):
        PlaceManifest(LocalPlace(str(tmp_path)), "job").append(segment(7, 0))


def test_a_place_that_denies_the_right_to_write_ends_the_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: what nobody may do is waited for like what is away."""
    place = LocalPlace(str(tmp_path))

    def denied(*_: object) -> None:
        raise OSError("AWS Error ACCESS_DENIED during PutObject operation")

    monkeypatch.setattr(place, "put", denied)
    with pytest.raises(InfrastructureError, match="ACCESS_DENIED") as caught:
        PlaceManifest(place, "job").append(segment(7, 0))
    assert not isinstance(caught.value, CheckpointUnavailableError), "which is waited for"


@pytest.mark.parametrize(
    ("url", "path"),
    [("/tmp/a b", "/tmp/a b"), ("file:/tmp/a%20b/", "/tmp/a b"), ("file:///tmp/x", "/tmp/x")],
)
def test_local_paths_and_the_urls_that_spark_makes_of_them(url: str, path: str) -> None:
    place = place_at(url)
    assert (place.url, place.path("y")) == (path, f"file://{path}/y")  # not encoded


def test_sparks_names_of_object_stores_are_known() -> None:
    place = place_at("s3a://bucket/a/?region=us-east-1")
    assert place.path("y") == "s3a://bucket/a/y"


def test_an_unknown_kind_of_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="ftp://host/x"):
        place_at("ftp://host/x")
