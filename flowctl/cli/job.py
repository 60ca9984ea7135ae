"""Find the spout that ``flowctl run`` is asked for: in a file or in an importable module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from flowctl.errors import ConfigError, FlowctlError, JobError, without_secrets
from flowctl.instrumentation.text import printable_block

if TYPE_CHECKING:
    from flowctl.runtime.spout import FlowControlSpout

DEFAULT_ATTRIBUTE = "spout"


def load_spout(spec: str) -> FlowControlSpout:
    """Return the spout that ``spec`` names: ``job.py:spout`` or ``package.module:spout``.

    The attribute is a ``FlowControlSpout``, as what ``Topology.job`` returns is too, or a function
    without arguments that returns one; it defaults to ``spout``.  Raises :class:`ConfigError` for
    what isn't there and :class:`JobError` when the job's own code raises (its traceback goes to
    stderr).
    """
    target, _, attribute = spec.partition(":")
    module = _load_file(Path(target)) if _is_file_name(target) else _import_module(target)
    return _spout_of(module, attribute or DEFAULT_ATTRIBUTE, target)


def _is_file_name(target: str) -> bool:
    return target.endswith(".py") or "/" in target


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError("JOB", f"no file {path}.", remedy="Give FILE.py:ATTRIBUTE.")
    path = path.resolve()
    # Imports beside the job's file work as they do for `python job.py`.
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem.isidentifier() else "job"
    if name in sys.modules:  # a job called logging.py must not replace the library's
        name = f"job_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickling and dataclasses look modules up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _job_raised(error, path.name, str(path)) from error
    return module


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                "JOB", f"no module {name}.", remedy="Give FILE.py:ATTRIBUTE or a module's name."
            ) from None
        raise _job_raised(error, name, "") from error
    except Exception as error:
        raise _job_raised(error, name, "") from error


def _spout_of(module: ModuleType, attribute: str, target: str) -> FlowControlSpout:
    from flowctl.runtime.spout import FlowControlSpout

    found: Any = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(
            "JOB", f"{target} has no {attribute!r}.", remedy=_what_there_is(module, target)
        )
    if callable(found) and not isinstance(found, FlowControlSpout | type):
        try:
            found = found()
        except Exception as error:
            raise _job_raised(error, target, module.__file__ or "") from error
    if not isinstance(found, FlowControlSpout):
        raise ConfigError(
            "JOB",
            f"{target}:{attribute} is no FlowControlSpout but {type(found).__name__}.",
            remedy=_how_to_run(found) or _what_there_is(module, target),
        )
    return found


def _how_to_run(found: Any) -> str:
    """Where ``found`` is nearly what was meant: what is missing."""
    from flowctl.topology import Topology

    if isinstance(found, Topology):
        return "Say where it runs: job = topology.job(SparkStages(), checkpoint=…), and name that."
    return ""


def _what_there_is(module: ModuleType, target: str) -> str:
    from flowctl.runtime.spout import FlowControlSpout

    names = sorted(
        name
        for name, value in vars(module).items()
        if isinstance(value, FlowControlSpout)
        or (callable(value) and getattr(value, "__module__", "") == module.__name__)
    )
    if not names:
        return "It holds neither a FlowControlSpout nor a function that could return one."
    return f"There is: {', '.join(f'{target}:{name}' for name in names)}."


def _job_raised(error: Exception, name: str, path: str) -> FlowctlError:
    if isinstance(error, FlowctlError):
        return error
    click.echo(_users_traceback(error, path), err=True)
    return JobError(
        f"{name} raised {type(error).__name__} while it was loaded.",
        remedy="See the traceback above.",
    )


def _users_traceback(error: Exception, path: str) -> str:
    """Return the traceback from the user's file on: the frames before it are ours."""
    told = traceback.TracebackException.from_exception(error)
    first = next((i for i, frame in enumerate(told.stack) if frame.filename == path), 0)
    told.stack = traceback.StackSummary.from_list(list(told.stack)[first:])
    return printable_block(without_secrets("".join(told.format(chain=False))))
