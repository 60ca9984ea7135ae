"""A run as seen by its caller: shown, interruptible, its report written to a file."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from flowctl.arguments import check_numbers
from flowctl.config import MetricsSettings
from flowctl.errors import ConfigError, FlowctlError, InfrastructureError, without_secrets
from flowctl.instrumentation.run_events import RunEvents
from flowctl.instrumentation.shown import Shower
from flowctl.instrumentation.snapshot import Report, View, outcome_of
from flowctl.instrumentation.summary import IN_MEMORY
from flowctl.instrumentation.text import shown_command
from flowctl.instrumentation.views import Page, make_view
from flowctl.logs import running
from flowctl.ports import RedrivableDeadLetter, ShowingStore
from flowctl.runtime.interrupts import Interrupts
from flowctl.runtime.run import Run
from flowctl.runtime.run_plan import Ending, RunPlan

if TYPE_CHECKING:
    from flowctl.instrumentation.page import PageView

# A report whose file is named so is a page; any other is JSON.
_PAGES: Final = (".html", ".htm")

ViewChoice: TypeAlias = View | Page | Literal["auto", "live", "plain", "quiet", "off", "page"]


def _served(settings: MetricsSettings, view: View) -> AbstractContextManager[View]:
    if settings.port is None:
        return nullcontext(view)
    from flowctl.instrumentation.metrics_server import served  # loads http.server and ssl

    return served(settings, view)


class Interrupted(KeyboardInterrupt):
    """Raised after Ctrl-C, SIGTERM or SIGHUP: everything acked is saved, or the message says that
    it is not.

    ``report`` says how far the run got.
    """

    report: Report


class Launch:
    """One run of ``plan``, to be used once.  :meth:`run` is for one thread.

    ``view`` shows progress, "page" in a browser and as "auto" does; ``resume_hint`` is the command
    that resumes after an interruption (None: the one of this process, or to run a notebook's cell
    again); the report is written to ``report_path``, however the run ends: as a page if its name
    ends in .html, else as JSON.  ``deadline_s``: the run ends after this time [s].
    """

    def __init__(
        self,
        plan: RunPlan,
        *,
        view: ViewChoice = "auto",
        resume_hint: str | None = None,
        report_path: str | Path | None = None,
        deadline_s: float | None = None,
    ) -> None:
        if deadline_s is not None:
            check_numbers(deadline_s=deadline_s)
        self._plan = msgspec.structs.replace(plan, deadline_s=deadline_s)
        self._place = page_of(view)
        self._view = view_of(view)
        self._page: PageView | None = None
        self._resume_hint = resume_hint
        self._report_path = _checked_path(report_path)
        self._run: Run | None = None
        self.failure: FlowctlError | None = None  # the argument of :meth:`fail`

    def fail(self, error: FlowctlError) -> None:
        """End the run because of ``error``, or do not begin it.  For any thread."""
        self.failure = error
        if self._run is not None:
            self._run.control.fail(error)

    def run(self) -> Report:
        """Run to the end and return the report; raise what :meth:`FlowControlSpout.run` does."""
        with running(self._plan.job):
            return self._run_to_end()

    def _run_to_end(self) -> Report:
        interrupts = Interrupts()
        try:
            metrics = self._plan.settings.checked().metrics
            self._view = self._shown_elsewhere(self._paged())
            with interrupts.taken(), _served(metrics, self._view) as view:
                run = self._run = Run(self._plan, view, interrupts)
                if self.failure is not None:
                    run.control.fail(self.failure)
                ending = run.conduct()
        except BaseException as error:
            if self._run is None:
                no_run = report_of_no_run(self._plan.job, error)
                no_run = RunEvents(self._plan.job, self._plan.settings).finished(no_run)
                if self._page is not None:
                    self._page.end(no_run)
                self._tell(self._write(no_run))
            raise
        unwritten = self._write(ending.report)
        if isinstance(ending.error, KeyboardInterrupt):
            self._tell(unwritten)
            raise self._interrupted(ending, run) from None
        if ending.error is not None:
            self._tell(unwritten)  # why the run failed matters more
            _attach(ending.report, ending.error)
            raise ending.error
        if unwritten is not None:
            _attach(ending.report, unwritten)
            raise unwritten
        return ending.report

    def _interrupted(self, ending: Ending, run: Run) -> Interrupted:
        saved = "saved" if run.save_error is None else "NOT all saved"
        if run.control.store_survives:
            where = getattr(self._plan.store, "place", "")
            said = f"{saved}{f' in {where}' if where else ''}; {self._how_to_resume()}"
        else:  # no command resumes this run
            said = f"{saved} {IN_MEMORY}"
        self._say(said)
        interrupted = Interrupted(said)
        interrupted.report = ending.report
        return interrupted

    def _paged(self) -> View:
        """Return the view, beside a page if one is to be served or written."""
        if self._place is None and not _is_page(self._report_path):
            return self._view
        from flowctl.instrumentation.page import PageState, PageView  # loads http.server and rich

        letters = self._plan.dead_letter
        hint = letters.hint(self._plan.job) if isinstance(letters, RedrivableDeadLetter) else ""
        # No command resumes a run whose checkpoint ends with its process.
        survives = getattr(self._plan.store, "survives", True)
        resume = (self._resuming() or "run the cell again") if survives else f"kept {IN_MEMORY}"
        state = PageState(resume=resume, letters=hint)
        self._page = PageView(self._view, state, self._place)
        return self._page

    def _shown_elsewhere(self, view: View) -> View:
        """Return the view, beside what keeps the run's state where its checkpoint is."""
        store = getattr(self._plan.store, "inner", self._plan.store)
        if not isinstance(store, ShowingStore):
            return view
        return Shower(view, partial(store.show, self._plan.job))

    def _how_to_resume(self) -> str:
        command = self._resuming()
        return f"resume with: {command}" if command else "to resume, run the cell again"

    def _resuming(self) -> str:
        """Return the command that resumes; "" in a notebook."""
        if self._resume_hint is None and hasattr(sys, "ps1"):  # also in IPython and notebooks
            return ""
        return self._resume_hint or shown_command(["python", *sys.argv])

    def _write(self, report: Report) -> InfrastructureError | None:
        """Write the report if one is wanted; return why it could not be written."""
        if self._report_path is None:
            return None
        try:
            Path(self._report_path).write_text(self._written(report), encoding="utf-8")
        except OSError as error:
            return InfrastructureError(
                f"the run itself is over ({report.outcome}), but its report can't be written to"
                f" {self._report_path}: {error.strerror}.",
                remedy="What the report would say is above, and in the event run_finished.",
            )
        return None

    def _written(self, report: Report) -> str:
        if self._page is not None and _is_page(self._report_path):
            return self._page.html()
        # Not msgspec's JSON: it fails on lone surrogates, as in a file's name, and it keeps
        # non-ASCII characters (C1, bidi controls), which a terminal that shows the file would obey.
        told = msgspec.to_builtins(report)
        first = {key: told[key] for key in ("job", "outcome", "error", "elapsed_s")}
        return json.dumps(first | told, indent=2)

    def _tell(self, unwritten: InfrastructureError | None) -> None:
        if unwritten is not None:
            self._say(unwritten.problem)

    def _say(self, text: str) -> None:
        with suppress(OSError):  # the terminal is gone
            self._view.message(text)


def _is_page(path: str | os.PathLike[str] | None) -> bool:
    return path is not None and os.fspath(path).lower().endswith(_PAGES)


def _checked_path(path: Any) -> str | os.PathLike[str] | None:
    if path is None or (isinstance(path, str | os.PathLike) and os.fspath(path)):
        return path
    raise ConfigError("report_path", f"{path!r} is not a path.", remedy="Name a file.")


def view_of(view: Any) -> View:
    """Return ``view``, or make the one of that name, or the one beside a page; raise
    :class:`ConfigError` for another.
    """
    if hasattr(view, "message"):
        given: View = view
        return given
    page = page_of(view)
    return make_view(view if page is None else page.beside)


def page_of(view: Any) -> Page | None:
    """Return the page that ``view`` asks for, if it does."""
    if isinstance(view, Page):
        return view
    return Page() if isinstance(view, str) and view == "page" else None


def _attach(report: Report, error: BaseException) -> None:
    """Attach the report to ``error``; foreign errors have no attribute declared for it."""
    if isinstance(error, FlowctlError):
        error.report = report
    else:
        vars(error)["report"] = report


def report_of_no_run(job: str, error: BaseException) -> Report:
    """Return the report of a run that did not begin: its store can't be reached or read."""
    return Report(
        job=job,
        outcome=outcome_of(error),
        error=without_secrets(str(error)),
        elapsed_s=0.0,
    )
