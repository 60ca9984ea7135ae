"""``flowctl replay``: the decisions of a recorded run again, or what others would have been."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from flowctl.cli.click_options import check_not_read, check_writable
from flowctl.cli.run import parse_overrides
from flowctl.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError
from flowctl.instrumentation.event_text import NAMES
from flowctl.instrumentation.numbers import counted, duration
from flowctl.instrumentation.text import printable

if TYPE_CHECKING:
    from flowctl.core.driver import Turn
    from flowctl.runtime.recording import Recording, Replay

_KINDS_SHOWN = 6


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--decisions", "decisions_path", metavar="OUT", type=click.Path(path_type=Path),
              help="Write all decisions to OUT, as JSON lines: time since the first call, kind,"
              " what was decided.")  # fmt: skip
@click.option("--policy", metavar="NAME[:N]", default="",
              help="Estimate how long the run would have taken with this window policy; see"
              " `flowctl simulate --list`.")  # fmt: skip
@click.option("--set", "overrides", metavar="NAME=VALUE", multiple=True,
              help="Estimate it with this setting, e.g. tuple.records_max=500; may be"
              " repeated.")  # fmt: skip
def replay(
    *, path: Path, decisions_path: Path | None, policy: str, overrides: tuple[str, ...]
) -> int:
    """Decide again what FILE records, which `flowctl run --record FILE` wrote, and compare.

    Exits with 1 if anything is decided otherwise, as by another version of flowctl.  With --policy
    or --set it says what would have been, by a simulation of the recorded job (needs
    flowctl-spark[lab]).
    """
    from flowctl.runtime.recording import Recording, Replay

    check_writable("--decisions", decisions_path)
    check_not_read("--decisions", decisions_path, path)
    changes = parse_overrides(overrides)
    try:
        recording = Recording(str(path))
    except OSError as error:
        raise ConfigError(
            "FILE", f"{path} can't be read: {error.strerror}.", remedy="Name another file."
        ) from None
    if policy or changes:
        _tell(_estimated(recording, policy, changes))
        return EXIT_FINISHED
    run = Replay(recording)
    _drive(run, decisions_path)
    _tell(_lines(recording, run))
    return EXIT_FINISHED if run.difference is None else EXIT_FAILED


def _estimated(recording: Recording, policy: str, changes: dict[str, Any]) -> list[str]:
    from flowctl.adapters import load_adapter

    lines: list[str] = load_adapter("flowctl_lab.what_if", "lab").estimated(
        recording, policy, changes
    )
    return lines


def _tell(lines: list[str]) -> None:
    for line in lines:
        click.echo(printable(line))


def _drive(run: Replay, path: Path | None) -> None:
    with nullcontext() if path is None else path.open("wb") as file:
        for name, _, _, result in run.steps():
            if file is not None and name == "turn":
                _write(file, run.for_s, result)


def _write(file: BinaryIO, at_s: float, turn: Turn) -> None:
    import msgspec

    from flowctl.runtime.recording import decisions

    for kind, told in decisions(turn):
        if kind != "next":
            file.write(msgspec.json.encode((round(at_s, 6), kind, told), enc_hook=repr) + b"\n")


def _lines(recording: Recording, run: Replay) -> list[str]:
    began = recording.began
    at = datetime.fromtimestamp(began.began_unix_s).strftime("%Y-%m-%d %H:%M:%S")
    took = f"{counted(run.calls, 'call')} in {duration(run.for_s)}"
    first = f"{began.job} · run {began.run} · began {at} · {took}"
    if run.difference is None:
        names = {event.__name__: name.replace("_", " ") for event, name in NAMES.items()}
        names |= {"emit": "tuple sent", "dead": "tuple given up"}
        told = [f"{count} × {names.get(k, k.lower())}" for k, count in run.decided.most_common()]
        more = f", and {len(told) - _KINDS_SHOWN} kinds more" if len(told) > _KINDS_SHOWN else ""
        total = counted(run.decided.total(), "decision")
        what = ", ".join(told[:_KINDS_SHOWN]) + more
        same = f"{total}, the same as recorded, byte for byte"
        return [line for line in (first, same, what, recording.missing) if line]
    at_s, recorded, now = run.difference
    lines = [
        first,
        f"decided otherwise {at_s:.3f} s after the first call",
        f"  recorded  {recorded}",
        f"  now       {now}",
    ]
    import flowctl

    if began.version != flowctl.__version__:
        lines.append(f"recorded by flowctl {began.version}; this is {flowctl.__version__}")
    return lines
