"""A picture of the live view: drawn once, at its moment, one file a width, without the web."""

from __future__ import annotations

import html
import re
from pathlib import Path

import msgspec
import pytest

from flowctl.instrumentation.live import Picture
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.instrumentation.views import BaseView
from tests.unit.test_view_live import snapshot
from tests.unit.test_view_plain import REPORT


def at(elapsed_s: float, records: int) -> Snapshot:
    return msgspec.structs.replace(snapshot(), elapsed_s=elapsed_s, records_acked=records)


def text_of(path: Path) -> str:
    return html.unescape(path.read_text(encoding="utf-8")).replace("\xa0", " ")


def picture(path: Path, *columns: int) -> Picture:
    view = Picture(BaseView(), path, at_s=2.0, columns=columns, title="a run")
    view.start("j", "the headline")
    return view


def test_it_shows_the_moment_that_was_asked_for_counted_from_the_first_ack(tmp_path: Path) -> None:
    view = picture(tmp_path / "v.svg", 100)
    for elapsed_s, records in ((5.0, 0), (10.0, 10), (11.9, 2000), (12.0, 3000), (12.5, 4000)):
        view.update(at(elapsed_s, records))
    view.stop(REPORT)
    text = text_of(tmp_path / "v.svg")
    assert "records 3 000" in text and "records 4 000" not in text
    assert "the headline" in text and "a run" in text


def test_a_run_that_ends_before_is_drawn_at_its_end_in_each_width(tmp_path: Path) -> None:
    view = picture(tmp_path / "v.svg", 80, 160)
    view.update(at(1.0, 7))
    view.stop(REPORT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v-160.svg", "v-80.svg"]
    assert all("records 7" in text_of(path) for path in tmp_path.iterdir())


def test_nothing_is_loaded_from_the_web(tmp_path: Path) -> None:
    view = picture(tmp_path / "v.svg", 80)
    view.update(at(1.0, 7))
    view.stop(REPORT)
    text = (tmp_path / "v.svg").read_text(encoding="utf-8")
    assert "@font-face" not in text and "url(http" not in text


@pytest.mark.parametrize("columns", [80, 108, 160])
def test_the_committed_pictures_show_who_is_slow_and_cut_nothing_but_notes(columns: int) -> None:
    picture = text_of(Path(__file__).parents[2] / "docs" / "images" / f"view-{columns}.svg")
    words = [word.strip() for word in re.findall(">([^<>]+)<", picture) if word.strip()]
    assert (words.count("normal"), words.count("slow")) == (11, 1)
    # The verdict is on two lines where it does not fit one.
    assert re.search(r"b5 is \S+x slower and gets \S+ % \(an equal share", " ".join(words))
    assert all("slower" in word or "access-" in word for word in words if "…" in word)
