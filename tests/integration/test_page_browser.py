"""The page in a browser: it is drawn, it asks nobody else for anything, and words stay words."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import pytest

from flowctl.core import events as ev
from flowctl.instrumentation.page import PageState, PageView, page_with
from flowctl.instrumentation.snapshot import Snapshot, Verdict
from flowctl.instrumentation.team_page import NAME, Seen, TeamState
from flowctl.instrumentation.views import BaseView, Page
from flowctl.testing.clock import ManualClock
from tests.unit.test_team_page import NOW_S, claim, job_of, target_of
from tests.unit.test_view_plain import BOLT, REPORT, SNAPSHOT

BROWSER: Final = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here")

HOSTILE = "</script><script>document.title='hacked'</script><b onclick=x>b</b> \x1b[2J"


def open_at(url: str, place: Path, *, width: int = 1200) -> subprocess.Popen[str]:
    """Open ``url`` in a browser that prints the page as it is once nothing is loading any more."""
    command = [
        str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # of its own accord too
        f"--user-data-dir={place / 'browser'}", f"--log-net-log={place / 'net.json'}",
        f"--window-size={width},900", "--virtual-time-budget=2000", "--dump-dom", url,
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
    )


def look(page: Path, *, width: int = 1200) -> str:
    """Return the page in this file as the browser has it."""
    return open_at(page.as_uri(), page.parent, width=width).communicate(timeout=120)[0]


def asked_by_a_page(place: Path) -> set[str]:
    """The addresses that were asked for by a page or opened by the test; the browser asks for
    some by itself.
    """
    text = (place / "net.json").read_text()
    try:
        seen = json.loads(text)
    except ValueError:  # it was ended before it closed the list
        seen = json.loads(text.rstrip().rstrip(",") + "]}")
    requests = [event["params"] for event in seen["events"] if "url" in event.get("params", {})]
    return {
        request["url"]
        for request in requests
        if request.get("initiator", "not an origin") != "not an origin"
        or request["url"].startswith(("http://127.", "file:"))
    }


def hostile(snapshot: Snapshot) -> Snapshot:
    bolts = tuple(
        msgspec.structs.replace(BOLT, name=f"{HOSTILE} {n}", records_per_s=10.0) for n in range(3)
    )
    verdict = Verdict(headline=HOSTILE, why=HOSTILE, remedy=HOSTILE)
    return msgspec.structs.replace(snapshot, bolts=bolts, verdict=verdict, note=HOSTILE)


def fill(view: PageView) -> None:
    view.start(HOSTILE, HOSTILE)
    view.event(
        ev.RecordsRejected(
            at_s=1.0, tuple_id=1, bolt="b1", partition=HOSTILE, positions=(7,), reasons=(HOSTILE,)
        )
    )
    for second in (1.0, 2.0, 3.0):
        view.update(hostile(msgspec.structs.replace(SNAPSHOT, elapsed_s=second)))


def words_of(dom: str) -> str:
    """The text that a reader sees, without that of scripts."""
    body = re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", body))


def test_a_served_page_asks_its_own_server_only_and_shows_what_it_is_told(tmp_path: Path) -> None:
    view = PageView(BaseView(), PageState(clock=ManualClock()), Page())
    fill(view)
    with open_at(view.url, tmp_path) as browser:
        log = tmp_path / "net.json"
        while browser.poll() is None and not (log.exists() and "/events" in log.read_text()):
            time.sleep(0.1)
        view.stop(REPORT)
        PageView(BaseView(), PageState(), Page())  # the first one makes way: its stream ends
        dom = browser.communicate(timeout=60)[0]
    asked = asked_by_a_page(tmp_path)
    assert {urlsplit(url).path for url in asked} >= {"/", "/events"}
    assert {urlsplit(url).hostname for url in asked} == {"127.0.0.1"}
    assert "finished" in words_of(dom) and "200 000 records" in words_of(dom)
    assert len(re.findall(r"<canvas[^>]* width=", dom)) >= 5, "lanes and curves are drawn"


def test_names_with_markup_are_shown_as_they_are_and_a_report_asks_for_nothing(
    tmp_path: Path,
) -> None:
    view = PageView(BaseView(), PageState(clock=ManualClock(), resume=HOSTILE))
    fill(view)
    page = tmp_path / "run.html"
    view.stop(REPORT)
    page.write_text(view.html())
    dom = look(page)
    assert {urlsplit(url).scheme for url in asked_by_a_page(tmp_path)} <= {"file", "data"}
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title is not None and title[1] != "hacked"
    assert not re.search(r"<b\b", dom) and "onclick=x" in words_of(dom)
    assert dom.count("<script") == 2


def test_the_page_of_all_jobs_shows_who_fills_what_and_asks_nobody_else(tmp_path: Path) -> None:
    claims = claim("w1", "orders", 6), claim("w2", HOSTILE, 2)
    told = TeamState("Redis").told(Seen(NOW_S, (job_of(HOSTILE),), (target_of(*claims),)))
    page = tmp_path / "team.html"
    page.write_text(page_with(told, name=NAME))
    dom = look(page)
    assert {urlsplit(url).scheme for url in asked_by_a_page(tmp_path)} <= {"file", "data"}
    words = words_of(dom)
    assert "pg-main is full: orders has 75 % of it" in words and "6 of 8" in words
    assert not re.search(r"<b\b", dom) and "onclick=x" in words


@pytest.mark.parametrize("width", [500, 1600])  # Chromium's windows are 500 wide at least
def test_nothing_is_wider_than_the_window(tmp_path: Path, width: int) -> None:
    view = PageView(BaseView(), PageState(clock=ManualClock()))
    fill(view)
    page = tmp_path / "run.html"
    # The page says how wide it is: with its own policy it would not run what is not its own.
    told = "<script>addEventListener('load', () => document.body.dataset.wide ="
    told += " document.documentElement.scrollWidth)</script>"
    text = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", view.html())
    page.write_text(text.replace("</body>", f"{told}</body>"))
    wide = re.search(r'data-wide="(\d+)"', look(page, width=width))
    assert wide is not None and int(wide[1]) <= width
