"""Many runs: scenarios x policies x seeds, in as many processes as asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import msgspec

from flowctl.errors import FlowctlError, InternalError
from flowctl.simulation.catalogue import CATALOGUE
from flowctl.simulation.engine import Outcome, simulate
from flowctl.simulation.policies import settings_of


class Job(msgspec.Struct, frozen=True):
    """One run, by names: what a command line can say."""

    scenario: str
    policy: str
    seed: int
    overrides: dict[str, Any] = {}

    @property
    def command(self) -> str:
        """The command that repeats it."""
        text = f"flowctl simulate {self.scenario} --policy {self.policy} --seeds {self.seed}"
        return text + "".join(f" --set {name}={value}" for name, value in self.overrides.items())


def run_job(job: Job) -> Outcome:
    """Run it; an unexpected error names the command that repeats it."""
    scenario = CATALOGUE[job.scenario]
    try:
        settings = settings_of(job.policy, scenario, job.overrides)
        return simulate(scenario, settings, job.seed, policy=job.policy)
    except InternalError as error:
        raise InternalError(error.problem, remedy=f"Repeat it: {job.command}") from error
    except FlowctlError:
        raise
    except Exception as error:
        raise InternalError(
            f"{type(error).__name__}: {error}", remedy=f"Repeat it: {job.command}"
        ) from error


def jobs_of(
    scenarios: Sequence[str],
    policies: Sequence[str],
    seeds: Sequence[int],
    overrides: Mapping[str, Any],
) -> list[Job]:
    """All combinations; those of one scenario and policy stand together."""
    return [
        Job(scenario, policy, seed, dict(overrides))
        for scenario in scenarios
        for policy in policies
        for seed in seeds
    ]


def run_jobs(jobs: Sequence[Job], processes: int) -> Iterator[Outcome]:
    """Yield the outcomes in the order of ``jobs``, each as soon as it is there."""
    if processes == 1 or len(jobs) == 1:
        yield from map(run_job, jobs)
        return
    with ProcessPoolExecutor(max_workers=min(processes, len(jobs))) as pool:
        yield from pool.map(run_job, jobs)
