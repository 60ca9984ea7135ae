"""Many runs: scenarios x policies x seeds, in as many processes as asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from flowctl.errors import ConfigError, FlowctlError, InternalError
from flowctl_lab.simulation.engine import Outcome, simulate
from flowctl_lab.simulation.generated import PREFIX, scenario_of
from flowctl_lab.simulation.policies import settings_of
from flowctl_lab.simulation.processes import pool_of
from flowctl_lab.simulation.scenario import Scenario


class Job(msgspec.Struct, frozen=True):
    """One run, described by names as on a command line.  ``policy`` is as in :func:`part_of`."""

    scenario: str
    policy: str
    seed: int
    overrides: dict[str, Any] = {}

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        text = f"flowctl simulate {self.scenario} --policy {self.policy}"
        if not self.scenario.startswith(PREFIX):
            text += f" --seeds {self.seed}"
        return text + "".join(f" --set {name}={value}" for name, value in self.overrides.items())


def run_job(job: Job) -> Outcome:
    """Run the job; an unexpected error names the command that repeats it."""
    name, scenario = part_of(job.policy, scenario_of(job.scenario))
    try:
        settings = settings_of(name, scenario, job.overrides)
        return simulate(scenario, settings, job.seed, policy=job.policy)
    except InternalError as error:
        raise InternalError(error.problem, remedy=f"Repeat it: {job.command}") from error
    except FlowctlError:
        raise
    except Exception as error:
        raise InternalError(
            f"{type(error).__name__}: {error}", remedy=f"Repeat it: {job.command}"
        ) from error


def part_of(policy: str, scenario: Scenario) -> tuple[str, Scenario]:
    """Split ``/N`` off the policy's name: the run takes an Nth of the data, if that is steady."""
    name, cut, parts = policy.partition("/")
    if not cut:
        return name, scenario
    if not parts.isdecimal() or not int(parts):
        raise ConfigError("policy", f"no part {parts!r}.", remedy="Give a number, as aimd/4.")
    return name, scenario.part(int(parts))


def jobs_of(
    scenarios: Sequence[str],
    policies: Mapping[str, Sequence[int]],
    overrides: Mapping[str, Any],
) -> list[Job]:
    """Return all combinations; jobs of one scenario and policy are adjacent.

    ``policies`` has the seeds of each policy, with ``/N`` after the name for an Nth of steady
    scenarios.
    """
    jobs = []
    for name in scenarios:
        for policy, seeds in policies.items():
            whole, part = part_of(policy, scenario_of(name))
            shown = whole if part is scenario_of(name) else policy
            jobs += [Job(name, shown, seed, dict(overrides)) for seed in seeds]
    return jobs


def run_jobs(jobs: Sequence[Job], processes: int) -> Iterator[Outcome]:
    """Yield the outcomes in the order of ``jobs``, each as soon as it is available."""
    if processes == 1 or len(jobs) == 1:
        yield from map(run_job, jobs)
        return
    with pool_of(min(processes, len(jobs))) as pool:
        yield from pool.map(run_job, jobs)
