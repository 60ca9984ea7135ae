"""The page of a run: what a browser shows, as JSON, and as one HTML file with its data inside.

Texts and numbers come from where the terminal's come from, and are made printable here.
``page.html`` beside this file draws them; ``page_server.py`` serves them.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from threading import Lock
from typing import Any, Final

import msgspec

from flowctl.core import events as ev
from flowctl.core.events import FlowEvent
from flowctl.instrumentation import summary
from flowctl.instrumentation.event_text import repeated, sentence
from flowctl.instrumentation.failure_groups import Reasons, Repeats
from flowctl.instrumentation.numbers import clock as as_clock
from flowctl.instrumentation.numbers import count, counted, duration, rate
from flowctl.instrumentation.page_parts import (
    CONDITIONS,
    Curve,
    Lanes,
    checkpoint,
    code_of,
    ended,
    facts,
    point_of,
    stages,
    target,
    tiles,
    tiles_of,
    verdict,
    warnings,
    worst,
)
from flowctl.instrumentation.page_server import Feed, PageServer, Site
from flowctl.instrumentation.plain import is_routine
from flowctl.instrumentation.slow_bolts import SlowBolt, slow_bolts
from flowctl.instrumentation.snapshot import BoltView, Report, RunNumbers, Snapshot, View
from flowctl.instrumentation.text import printable
from flowctl.instrumentation.views import Beside, Page

KINDS_SHOWN: Final = 8  # kinds of errors: a screenful
HAPPENED_MAX: Final = 40  # lines of what happened: some screenfuls

_encode: Final = msgspec.json.Encoder().encode


class PageState:
    """What the page of one run shows.  :meth:`whole` is for any thread, the rest for one.

    ``elsewhere``: where to look for what is not told here, as from elsewhere only snapshots are
    seen, and no events.
    """

    def __init__(
        self,
        *,
        resume: str = "",
        letters: str = "",
        elsewhere: str = "",
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._lanes, self._curve = Lanes(), Curve()
        self._lost, self._failed = Reasons(), Reasons()
        self._repeats = Repeats(clock)
        self._happened: deque[tuple[str, str]] = deque(maxlen=HAPPENED_MAX)
        self._elapsed_s = 0.0
        self._letters = letters
        self._elsewhere = printable(elsewhere)
        self._said: dict[str, Any] = {"job": "", "phase": "starting", "resume": printable(resume)}
        self._lock = Lock()  # guards what whole() reads
        self.newest: bytes = _encode(self._said)

    def start(self, job: str, headline: str) -> None:
        """Begin a run of ``job``."""
        self._say({"job": printable(job), "headline": printable(headline)})

    def update(self, snapshot: Snapshot) -> None:
        """Show ``snapshot``."""
        for event, more in self._repeats.due():
            self.note(repeated(event, more))
        slow = slow_bolts(snapshot)
        with self._lock:
            if snapshot.elapsed_s < self._elapsed_s:  # another run of the job, seen from elsewhere
                self._lanes, self._curve = Lanes(), Curve()
            self._elapsed_s = snapshot.elapsed_s
            self._lanes.take(snapshot, slow)
            self._curve.take(point_of(snapshot))
        self._say(
            {
                "at": as_clock(snapshot.elapsed_s),
                "unix_ms": int(self._now() * 1000),
                "phase": snapshot.phase,
                "verdict": verdict(snapshot, self._now()),
                "tiles": tiles(snapshot),
                "progress": snapshot.progress,
                "eta_s": snapshot.eta_s,
                "facts": facts(snapshot),
                "warnings": warnings(snapshot),
                "bolts": self._bolts(snapshot, slow),
                "stages": stages(snapshot, self._lanes),
                "target": target(snapshot),
                "checkpoint": checkpoint(snapshot),
                "errors": self._errors(snapshot),
            }
        )

    def event(self, event: FlowEvent) -> None:
        """Note what happened, if it is of interest to a person, and count failures by kind."""
        self._lost.take(event)
        if isinstance(event, ev.TupleFailed | ev.TupleRefused):
            where = sentence(event) or event.reason
            self._failed.add(event.reason, 1, example=where)
        if self._repeats.is_news(event) and not is_routine(event) and (text := sentence(event)):
            self.note(text)

    def note(self, text: str) -> None:
        """Note a line for the user."""
        self._happened.append((as_clock(self._elapsed_s), printable(text)))

    def stop(self, report: Report) -> None:
        """Show how the run ended."""
        for event, more in self._repeats.due(is_end=True):
            self.note(repeated(event, more))
        self._letters = report.dead_letters_hint or self._letters
        lines = [printable(line) for line in summary.lines(report)]
        told: dict[str, Any] = {
            "job": printable(report.job),
            "phase": report.outcome,
            "at": as_clock(report.elapsed_s),
            "unix_ms": int(self._now() * 1000),
            "verdict": ended(report),
            "tiles": tiles_of(report),
            "eta_s": None,
            "facts": [],
            "warnings": [],
            "summary": lines[1:],  # the first one is in the place of the verdict
            "errors": self._errors(report),
        }
        if report.outcome == "finished":
            told["progress"] = 1.0
        if "checkpoint" in self._said:
            saved = next(line for line in lines if line.startswith("checkpoint "))
            told["checkpoint"] = {**self._said["checkpoint"], "kill": saved, "saved": ""}
        self._say(told)

    def whole(self) -> bytes:
        """Return all that a page needs which is opened now, as JSON."""
        with self._lock:
            said = self._said
            columns, points = self._lanes.columns(), list(self._curve.points())
        return _encode({**said, "columns": columns, "curve": points})

    def _say(self, told: Mapping[str, Any]) -> None:
        with self._lock:
            happened = list(self._happened)
            self._said = {**self._said, **told, "happened": happened}
            column, points = self._lanes.newest(), self._curve.points()
            columns = [] if column is None else [column]
            self.newest = _encode({**self._said, "columns": columns, "curve": points})

    def _bolts(self, snapshot: Snapshot, slow: Mapping[str, SlowBolt]) -> dict[str, Any]:
        codes = {bolt.name: code_of(bolt, slow) for bolt in snapshot.bolts}
        shown = worst(snapshot.bolts, codes)
        found = Counter(codes.values())
        listed = [f"{count(found[code])} {CONDITIONS[code]}" for code in CONDITIONS if found[code]]
        return {
            "rows": [self._row(bolt, codes[bolt.name], slow) for bolt in shown],
            "total": len(snapshot.bolts),
            "listed": " · ".join(listed),
        }

    def _row(self, bolt: BoltView, code: str, slow: Mapping[str, SlowBolt]) -> list[Any]:
        notes = [slow[bolt.name].text] if code == "s" else []
        if bolt.moved_away:
            notes.append(f"{counted(bolt.moved_away, 'tuple')} moved away")
        return [
            self._lanes.number(bolt),
            code,
            printable(bolt.name),
            rate(bolt.records_per_s),
            f"{count(bolt.in_flight)} of {count(bolt.window)}",
            duration(bolt.ack_rtt_p50_s),
            count(bolt.records_acked),
            ", ".join(notes),
        ]

    def _errors(self, seen: RunNumbers) -> dict[str, Any]:
        kinds = [
            [
                count(each.records),
                what,
                printable(each.reason),
                printable(reasons.example(each.reason)),
            ]
            for what, reasons in (("left out", self._lost), ("tried again", self._failed))
            for each in reasons.most(KINDS_SHOWN)
        ]
        lost = summary.losses(seen.records_rejected, seen.records_dead_lettered)
        is_kept = seen.records_rejected_kept or seen.records_dead_lettered
        return {
            "lost": lost,
            "kinds": kinds,
            "letters": printable(self._letters) if lost and is_kept else "",
            "is_kept": bool(is_kept),
            "elsewhere": self._elsewhere,
        }


class PageView(Beside):
    """Keeps the page of a run beside the view that shows it, and serves it at ``place``, if any.

    The server's threads never hold up the run: they read what is newest when their browser is
    ready.  After the run the page stays as it was, as long as the process does.
    """

    def __init__(self, inner: View, state: PageState, place: Page | None = None) -> None:
        super().__init__(inner)
        self._state = state
        self._feed = Feed(state.whole)
        self._server: PageServer | None = None
        if place is not None:
            site = Site(self._feed, html=self._live_html, policy=policy())
            self._server = PageServer(place.host, place.port, site)

    @property
    def url(self) -> str:
        """Where the page is; "" if it is not served."""
        return self._server.url if self._server is not None else ""

    def start(self, job: str, headline: str) -> None:
        super().start(job, headline)
        self._state.start(job, headline)
        self._publish()
        if self.url:
            super().message(f"page at {self.url}")

    def update(self, snapshot: Snapshot) -> None:
        self._state.update(snapshot)
        self._publish()
        super().update(snapshot)

    def event(self, event: FlowEvent) -> None:
        self._state.event(event)
        super().event(event)

    def message(self, text: str) -> None:
        self._state.note(text.partition("\n")[0])
        super().message(text)

    def stop(self, report: Report) -> None:
        try:
            super().stop(report)
        finally:
            self.end(report)

    def end(self, report: Report) -> None:
        """Show how the run ended, or that it did not begin, and make way for the next page."""
        self._state.stop(report)
        self._publish()
        if self._server is not None:
            self._server.leave()

    def _publish(self) -> None:
        if self._server is not None:
            self._feed.publish(self._state.newest)

    def _live_html(self) -> bytes:
        # With its first state inside: it is there at once, before the events are.
        return page_with(self._state.whole(), is_live=True).encode()

    def html(self) -> str:
        """Return the page as one file, with its data inside."""
        return page_with(self._state.whole())


# -- the file ----------------------------------------------------------------------------------

_DATA: Final = '<script type="application/json" id="data">null</script>'
_POLICY_META: Final = "<!-- policy -->"


@cache
def page_html(name: str = "page.html") -> str:
    """Return a page without data; ``page.css`` and ``page.js``, which all pages share, are in
    it.
    """
    folder = resources.files("flowctl.instrumentation")
    html = (folder / name).read_text(encoding="utf-8")
    for shared in ("page.css", "page.js"):
        html = html.replace(f"/* {shared} */", (folder / shared).read_text(encoding="utf-8"), 1)
    return html


@cache
def policy(name: str = "page.html") -> str:
    """Return a page's Content-Security-Policy: its own script and style, and its own server."""
    allowed = {
        f"{kind}-src": [
            f"'sha256-{_digest(text)}'"
            for text in re.findall(rf"<{kind}>(.*?)</{kind}>", page_html(name), re.DOTALL)
        ]
        for kind in ("script", "style")
    }
    return "; ".join(
        [
            "default-src 'none'",
            *(f"{name} {' '.join(digests)}" for name, digests in allowed.items()),
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def page_with(data: bytes, *, name: str = "page.html", is_live: bool = False) -> str:
    """Return a page with ``data``, JSON, inside; unless live, it asks no server for more."""
    # Nothing in it can end the element, or begin a comment.
    text = data.decode().replace("<", "\\u003c")
    html = page_html(name).replace(_DATA, _DATA.replace("null", text, 1), 1)
    if is_live:
        return html
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy(name)}">'
    return html.replace(_POLICY_META, meta, 1)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
