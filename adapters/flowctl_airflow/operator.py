"""``flowctl run`` as a task of Airflow 3: it survives its worker, and a retry attaches to it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from flowctl.errors import FlowctlError
from flowctl.runtime.detached import POLL_S, DetachedRun, Ended

try:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException
except ImportError:  # Airflow 3.0
    from airflow.exceptions import AirflowException, AirflowFailException


# Clocks of machines differ: a run that comes too early would find the quota used up once more.
_LATER_S = 2.0
_LOOK_S = 60.0


class FlowctlOperator(BaseOperator):
    """Run ``flowctl run JOB OPTIONS…`` and return its report, which becomes the XCom.

    The run is a process of its own.  If Airflow kills the worker, the run goes on, and the task's
    next try attaches to it by ``name``, the job's name: a machine never runs the same job twice at
    once.  With workers on several machines give the options ``--redis URL --standby``.

    ``deferrable``: the task waits in the triggerer and occupies no worker, however long the run
    lasts or waits for its target.  The triggerer must be on the worker's machine.  Where a quota is
    used up the run ends, saved; the task waits there for the moment at which the quota begins anew,
    and runs it again, which is no try of Airflow's.

    ``directory``: where the job runs and keeps its files; by default the folder of its file.
    ``program``: ``flowctl``, or its path in the environment that has the job's packages, which need
    not be Airflow's.  ``environment``: variables for the run.

    Fails for good with exit codes 2 (wrong usage), 3 (records were left out) and 4 (``spend_max``
    is spent); after others a retry resumes.  A user who marks the task as failed, or clears it,
    stops the run, which saves.
    """

    template_fields: Sequence[str] = ("name", "job", "options", "directory", "environment")

    def __init__(
        self,
        *,
        name: str,
        job: str,
        options: Sequence[str] = (),
        directory: str = "",
        program: str = "flowctl",
        environment: Mapping[str, str] | None = None,
        deferrable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.job = job
        self.options = list(options)
        self.directory = directory
        self.program = program
        self.environment = dict(environment or {})
        self.deferrable = deferrable
        self._run: DetachedRun | None = None

    def execute(self, context: Any) -> dict[str, Any]:
        """Start the run or attach to it, and wait for its end."""
        run = self._run = self._run_for(context)
        try:
            began = run.start()
        except FlowctlError as error:
            raise AirflowFailException(str(error)) from error
        self.log.info("%s %s in %s", "started" if began else "attached to", run.name, run.directory)
        if self.deferrable:
            trigger = FlowctlTrigger(run.name, str(run.directory), run.occasion)
            self.defer(trigger=trigger, method_name="execute_complete")
        while (ended := run.ended()) is None:
            self._tell(run)
            time.sleep(POLL_S)
        return self._report(run, ended)

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue after the trigger's event."""
        run, ended = self._run_for(context), msgspec.convert(event, Ended)
        until_s = ended.paused_until_s
        if self.deferrable and until_s is not None:
            self._tell(run)
            self.log.info("%s", ended.problem)
            self.defer(trigger=QuotaTrigger(until_s + _LATER_S), method_name="execute_again")
        return self._report(run, ended)

    def execute_again(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue when the quota has begun anew."""
        return self.execute(context)

    def on_kill(self) -> None:
        """Tell the run to save and end."""
        if self._run is not None:
            self._run.stop()

    def _run_for(self, context: Any) -> DetachedRun:
        task = context["ti"]
        folder = os.path.dirname(self.job.partition(":")[0])
        return DetachedRun(
            self.name,
            [self.program, "run", self.job, *self.options],
            occasion=f"{task.dag_id}/{task.task_id}/{task.run_id}/{task.map_index}",
            directory=self.directory or folder or os.path.expanduser("~"),
            environment=self.environment,
        )

    def _tell(self, run: DetachedRun) -> None:
        for line in run.printed().splitlines():
            self.log.info("%s", line)

    def _report(self, run: DetachedRun, ended: Ended) -> dict[str, Any]:
        self._tell(run)
        if not ended.is_done:
            fails = AirflowException if ended.retry_helps else AirflowFailException
            raise fails(ended.problem)
        if (job := ended.report.get("job", run.name)) != run.name:
            # Without this check, another task could run the same job at the same time.
            raise AirflowFailException(f"The job is called {job!r}. Write name={job!r}.")
        run.take()  # only now: a worker may die between the trigger's event and this line
        return ended.report


class QuotaTrigger(BaseTrigger):
    """Waits for the moment at which a used-up quota begins anew: ``until_s`` [Unix seconds].

    On any machine.  The event is ``{"until_s": …}``.
    """

    def __init__(self, until_s: float) -> None:
        super().__init__()
        self.until_s = until_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments by which Airflow stores the trigger."""
        return ("flowctl_airflow.operator.QuotaTrigger", {"until_s": self.until_s})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the clock now and then: it may be set."""
        while (wait_s := self.until_s - time.time()) > 0:
            await asyncio.sleep(min(wait_s, _LOOK_S))
        yield TriggerEvent({"until_s": self.until_s})


class FlowctlTrigger(BaseTrigger):
    """Waits for the end of the run that was started in ``directory`` under ``name``.

    The event is that end: ``{"code": 0, "report": {…}}``.
    """

    def __init__(self, name: str, directory: str, occasion: str) -> None:
        super().__init__()
        self.name = name
        self.directory = directory
        self.occasion = occasion

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments by which Airflow stores the trigger."""
        fields = {"name": self.name, "directory": self.directory, "occasion": self.occasion}
        return ("flowctl_airflow.operator.FlowctlTrigger", fields)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look twice a second."""
        run = self._attached()
        try:
            while (ended := await asyncio.to_thread(run.ended)) is None:
                await asyncio.sleep(POLL_S)
        except FlowctlError as error:
            ended = Ended(None, {"error": str(error)})
        yield TriggerEvent(msgspec.to_builtins(ended))

    async def on_kill(self) -> None:
        """Tell the run to save and end, since a user marked or cleared the task (Airflow 3.3)."""
        await asyncio.to_thread(self._attached().stop)

    def _attached(self) -> DetachedRun:
        return DetachedRun(self.name, (), occasion=self.occasion, directory=self.directory)
