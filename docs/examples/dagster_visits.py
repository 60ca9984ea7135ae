"""A flowctl job as an asset of Dagster: ``dagster dev -f dagster_visits.py``.

The run is a process of its own: if Dagster's is killed, it goes on, and the retry attaches to it.
"""

import dagster as dg

from flowctl import DetachedRun

COMMAND = ["flowctl", "run", "/opt/jobs/visits.py", "--redis", "redis://redis:6379/0"]
DIRECTORY = "/opt/jobs"


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=5, delay=30))
def visits(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    first_try = context.run.root_run_id or context.run.run_id  # of this day, whichever try it is
    run = DetachedRun("visits", COMMAND, directory=DIRECTORY, occasion=first_try)
    ended = run.wait()
    context.log.info(run.printed())
    if not ended.is_done:
        raise dg.Failure(ended.problem, allow_retries=ended.retry_helps)
    told = ("records_total", "records_acked", "records_per_s", "elapsed_s")
    return dg.MaterializeResult(metadata={name: ended.report[name] for name in told})


defs = dg.Definitions(assets=[visits])
