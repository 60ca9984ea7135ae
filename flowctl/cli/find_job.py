"""Finds the spout that ``flowctl run`` is given: in a file or in an importable module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flowctl.errors import ConfigError, FlowctlError, JobError, without_secrets
from flowctl.instrumentation.logging import settle
from flowctl.instrumentation.text import printable_block

if TYPE_CHECKING:
    from flowctl.runtime.parts import RunnableJob

DEFAULT_ATTRIBUTE = "spout"


class Found(NamedTuple):
    """An object of a job's file, and where it was found."""

    value: Any
    module: ModuleType
    target: str
    attribute: str

    def called(self, field: str = "JOB") -> Found:
        """Return the result of a function without arguments, anything else as it is; ``field`` is
        for errors.
        """
        self._check_needs_no_arguments(field)
        try:
            return self._replace(value=self.value())
        except Exception as error:
            raise _job_raised(error, self.target, self.module.__file__ or "") from error

    def _check_needs_no_arguments(self, field: str) -> None:
        try:
            inspect.signature(self.value).bind()
        except ValueError:  # some builtins don't say which arguments they take
            return
        except TypeError as error:
            raise ConfigError(
                field,
                f"{self.target}:{self.attribute} can't be called without arguments: {error}.",
                remedy="Name the spout or the job, or a function without arguments that returns it."
                f" {_what_there_is(self.module, self.target)}",
            ) from None


def load_spout(spec: str) -> RunnableJob:
    """Return the spout that ``spec`` names: ``job.py:spout`` or ``package.module:spout``.

    The attribute is a ``FlowControlSpout``, a job from ``Topology.job``, or a function without
    arguments that returns one; it defaults to ``spout``.  Raises :class:`ConfigError` if it isn't
    there and :class:`JobError` when the job's own code raises (its traceback goes to stderr).
    """
    return _spout_of(load_object(spec, field="JOB", attribute=DEFAULT_ATTRIBUTE))


def load_object(spec: str, *, field: str, attribute: str) -> Found:
    """Return the object that ``spec`` names in a file or a module; errors as in :func:`load_spout`.

    ``field`` names the argument in errors, ``attribute`` is the default if none is named.
    """
    target, _, named = spec.partition(":")
    if _is_file_name(target):
        module = _load_file(Path(target), field)
    else:
        module = _import_module(target, field)
    settle()  # its code may log as flowctl does
    attribute = named or attribute
    value = getattr(module, attribute, None)
    if value is None:
        raise ConfigError(
            field, f"{target} has no {attribute!r}.", remedy=_what_there_is(module, target)
        )
    return Found(value, module, target, attribute)


def _is_file_name(target: str) -> bool:
    return target.endswith(".py") or "/" in target


def _load_file(path: Path, field: str) -> ModuleType:
    if not path.is_file():
        raise ConfigError(field, f"no file {path}.", remedy="Give FILE.py:ATTRIBUTE.")
    path = path.resolve()
    # Imports of modules beside the job's file work as they do for `python job.py`.
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem.isidentifier() else "job"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", "") == str(path):
        return loaded
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


def _import_module(name: str, field: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(
            field,
            f"{name!r} is neither a Python file nor the name of a module.",
            remedy="Give FILE.py:ATTRIBUTE or package.module:ATTRIBUTE.",
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                field,
                f"no module {name}.",
                remedy="Give FILE.py:ATTRIBUTE or the name of a module.",
            ) from None
        raise _job_raised(error, name, "") from error
    except Exception as error:
        raise _job_raised(error, name, "") from error


def _spout_of(found: Found) -> RunnableJob:
    from flowctl.runtime.parts import RunnableJob

    if callable(found.value) and not isinstance(found.value, RunnableJob | type):
        found = found.called()
    if not isinstance(found.value, RunnableJob):
        target = found.target
        raise ConfigError(
            "JOB",
            f"{target}:{found.attribute} is not a FlowControlSpout but"
            f" {type(found.value).__name__}.",
            remedy=_how_to_run(found.value) or _what_there_is(found.module, target),
        )
    return found.value


def _how_to_run(found: Any) -> str:
    """Return what is missing if ``found`` is nearly what was meant."""
    told = getattr(found, "how_to_run", "")
    return told if isinstance(told, str) else ""


def _needs_no_arguments(value: Any) -> bool:
    if not callable(value) or isinstance(value, type):
        return False
    try:
        inspect.signature(value).bind()
    except (TypeError, ValueError):
        return False
    return True


def _what_there_is(module: ModuleType, target: str) -> str:
    from flowctl.runtime.parts import RunnableJob

    names = sorted(
        name
        for name, value in vars(module).items()
        if isinstance(value, RunnableJob)
        or (getattr(value, "__module__", "") == module.__name__ and _needs_no_arguments(value))
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
    """Return the traceback from the user's file on; the frames before it are flowctl's."""
    told = traceback.TracebackException.from_exception(error)
    first = next((i for i, frame in enumerate(told.stack) if frame.filename == path), 0)
    told.stack = traceback.StackSummary.from_list(list(told.stack)[first:])
    return printable_block(without_secrets("".join(told.format(chain=False))))
