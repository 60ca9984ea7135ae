"""The ``flowctl`` command: subcommands are loaded when they are called, errors become exit codes.

===  =============================================
0    finished
1    failed, whoever must act
2    wrong usage: an argument, a setting
3    finished, and records were rejected or dead-lettered
130  interrupted (Ctrl-C, SIGTERM) and saved
===  =============================================
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

import click

import flowctl
from flowctl.adapters import load_adapter
from flowctl.cli.click_options import is_full
from flowctl.cli.exiting import leave
from flowctl.errors import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    FlowctlError,
    InfrastructureError,
    without_secrets,
)
from flowctl.instrumentation.text import printable, printable_problem, printable_traceback

# name → (module:attribute, help): the help is here so that ``--help`` does not import any command.
# Those of ``flowctl_lab`` are there with flowctl-spark[lab].
COMMANDS = {
    "run": ("flowctl.cli.run:run", "Run a job: FILE.py:ATTRIBUTE or package.module:ATTRIBUTE."),
    "demo": ("flowctl_lab.demo.command:demo", "Run the main job on embedded parts and check it."),
    "explain": ("flowctl.cli.explain:explain", "Explain why a run is, or was, not faster."),
    "replay": ("flowctl.cli.replay:replay", "Decide again what a run recorded, and compare."),
    "top": ("flowctl.cli.watching:top", "Watch a run that goes on elsewhere."),
    "page": ("flowctl.cli.watching:page", "Serve a page of all jobs and targets of a Redis."),
    "checkpoint": ("flowctl.cli.checkpoint:checkpoint", "Show, rewind or clear a checkpoint."),
    "dlq": ("flowctl.cli.dlq:dlq", "Show, redrive or drop dead letters."),
    "receipts": (
        "flowctl.cli.receipts:receipts",
        "Show a job's results, remove what is left over.",
    ),
    "targets": ("flowctl.cli.targets:targets", "Show or bound what paced targets take."),
    "simulate": ("flowctl_lab.simulate:simulate", "Run the control law in virtual time."),
    "doctor": ("flowctl.cli.doctor:doctor", "Check what flowctl needs on this machine."),
}
DEBUG_VARIABLE = "FLOWCTL_DEBUG"


_LEVELS = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False)
_LEVEL_HELP = "Log to stderr from this level on, including what the view shows."


_FORMS = click.Choice(["text", "json"])
_FORM_HELP = "Log as key=value, or as one JSON object per line (from INFO on by default)."


def _let_take_log_options(command: click.Command) -> None:
    """Accept ``--log-level`` and ``--log`` after the command's name too, where they take
    precedence.
    """
    if not any("--log-level" in parameter.opts for parameter in command.params):
        command.params += _log_options()
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _let_take_log_options(each)


def _log_options() -> list[click.Parameter]:
    kinds = {"--log-level": (_LEVELS, _LEVEL_HELP), "--log": (_FORMS, _FORM_HELP)}
    return [
        click.Option([name], type=kind, help=text, expose_value=False, callback=_take_log_option)
        for name, (kind, text) in kinds.items()
    ]


def _take_log_option(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None and not ctx.resilient_parsing:
        given = ctx.find_root().meta
        given[f"flowctl.{option.name}"] = value
        _configure_log(given.get("flowctl.log_level"), given.get("flowctl.log"))


def _configure_log(level: str | None, form: str | None) -> None:
    from flowctl.instrumentation.logging import configure

    as_json = form == "json"
    configure(
        level or ("INFO" if as_json else "WARNING"),
        flow_events=as_json or level is not None,
        as_json=as_json,
    )


class LazyGroup(click.Group):
    """A group that imports a command's module only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        is_of_lab = module.startswith("flowctl_lab.")
        loaded = load_adapter(module, "lab") if is_of_lab else import_module(module)
        command = getattr(loaded, attribute)
        assert isinstance(command, click.Command)
        _let_take_log_options(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"flowctl {flowctl.__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.option("--debug", is_flag=True, help=f"Show tracebacks; also {DEBUG_VARIABLE}=1.")
def cli(debug: bool) -> None:
    """Adaptive flow control for ETL on Spark."""
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"
    given = click.get_current_context().find_root().meta
    if not given.keys() & {"flowctl.log_level", "flowctl.log"}:
        _configure_log(None, None)


cli.params += _log_options()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; raises nothing except ``SystemExit``."""
    _open_closed_streams()
    _write_utf8()
    result = _run(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        return _unwritten(error)
    return result


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = cli.main(arguments, prog_name="flowctl", standalone_mode=False)
    except click.ClickException as error:
        # That one holds our own help, of many lines; click before 8.2 does not have it.
        if type(error).__name__ != "NoArgsIsHelpError":
            quoted = printable(without_secrets(error.message))  # an argument, as it was given
            error.message = quoted  # type: ignore[misc]
        error.show()
        return EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILED
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except FlowctlError as error:
        return explain(error)
    except Exception as error:
        if isinstance(error, BrokenPipeError) or _is_of_echo(error):
            return _unwritten(error)
        if isinstance(error, OSError) and is_full(error):
            return explain(
                InfrastructureError(
                    f"{error.filename or 'a file'} can't be written: no space is left.",
                    remedy="Free some space where it goes, and give the command again.",
                )
            )
        click.echo(f"flowctl: unexpected {type(error).__name__}, please report it:", err=True)
        click.echo(printable_traceback(error), err=True)
        return EXIT_FAILED
    return result if isinstance(result, int) else EXIT_FINISHED


def _is_of_echo(error: Exception) -> bool:
    """Whether printing raised ``error``, and not other code that needs a disk."""
    innermost = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    return isinstance(error, OSError) and innermost.f_code is click.echo.__code__


def _unwritten(error: Exception) -> int:
    """Report that stdout accepts no more, write nothing more to it, and return the exit code.

    If its reader is gone (``| head``), nothing is reported.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        why = printable(getattr(error, "strerror", None) or str(error))
        with suppress(OSError):  # it may be the same disk
            click.echo(f"flowctl: the output can't be written: {why}.", err=True)
    return EXIT_FAILED


def _open_closed_streams() -> None:
    """Redirect standard streams that the caller closed (``>&-``).

    Otherwise the next file or socket that is opened would get their number, and output to "stdout"
    would go into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)  # inherited by children, like any standard stream
            opened = open(number, "w" if number else "r", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, opened)


def _write_utf8() -> None:
    """Write UTF-8 with ``LC_ALL=C`` too, where Python may take only ASCII.

    Click's output does so anyway; the view would escape each other character.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and _is_ascii(stream.encoding):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _is_ascii(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "ascii"


def explain(error: FlowctlError) -> int:
    """Print the problem and the remedy on stderr; return the exit code."""
    if os.environ.get(DEBUG_VARIABLE) == "1":
        click.echo(printable_traceback(error), err=True)
    click.echo(f"flowctl: {printable_problem(error.problem)}", err=True)
    if error.remedy:
        click.echo(f"         {printable(error.remedy)}", err=True)
    return error.exit_code


def entry() -> None:
    """Console-script entry point."""
    leave(main())


if __name__ == "__main__":
    entry()
