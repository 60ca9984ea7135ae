"""``--sink``: makes sinks that remember what they wrote forget it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowctl.cli.find_job import load_object
from flowctl.errors import ConfigError, FlowctlError, JobError

DEFAULT_ATTRIBUTE = "sink"


class NamedSink(NamedTuple):
    """A sink, and how the command line named it."""

    spec: str
    sink: Any

    def forget(self, job: str, *arguments: Any) -> bool | None:
        """Make it forget; False: it remembered nothing, None: it does not say."""
        try:
            forgot = self.sink.forget(job, *arguments)
        except Exception as error:
            what = (
                error.problem
                if isinstance(error, FlowctlError)
                else f"{type(error).__name__}: {error}."
            )
            raise JobError(
                f"The checkpoint is rewound, but {self.spec} did not forget {job}: {what}",
                remedy="Fix that and give the same command again before the job runs: until then"
                " the sink skips what it wrote.",
            ) from error
        finally:
            if hasattr(self.sink, "close"):
                self.sink.close()
        return forgot if isinstance(forgot, bool) else None

    def check_partitions(self) -> None:
        """Raise :class:`ConfigError` if it can't forget a single partition."""
        try:
            inspect.signature(self.sink.forget).bind("job", "partition", 1)
        except TypeError:
            raise ConfigError(
                "--sink",
                f"{self.spec}: its forget() can't forget a single partition.",
                remedy="Give it forget(job, partition=None, above=None), or clear the whole job.",
            ) from None


def load_sinks(specs: Sequence[str]) -> list[NamedSink]:
    """Return what ``specs`` name: ``job.py:sink``, ``package.module:sink``.

    Each is an object with ``forget(job)``, such as ``SqlSink``, or a function that returns one.
    """
    return [NamedSink(spec, _sink(spec)) for spec in dict.fromkeys(specs)]


def _sink(spec: str) -> Any:
    found = load_object(spec, field="--sink", attribute=DEFAULT_ATTRIBUTE)
    if not _forgets(found.value) and callable(found.value) and not isinstance(found.value, type):
        found = found.called("--sink")
    if isinstance(found.value, type) or not _forgets(found.value):
        names = sorted(name for name, value in vars(found.module).items() if _is_sink(value))
        there = ", ".join(f"{found.target}:{name}" for name in names)
        raise ConfigError(
            "--sink",
            f"{found.target}:{found.attribute} is a {type(found.value).__name__}, which has no"
            " forget(job).",
            remedy=f"There is: {there}." if there else "Name an SqlSink in the job's file.",
        )
    return found.value


def _forgets(value: Any) -> bool:
    return callable(getattr(value, "forget", None))


def _is_sink(value: Any) -> bool:
    return _forgets(value) and not isinstance(value, type)
