"""Prints docs/options.md: ``make options`` writes it."""

from __future__ import annotations

import sys

from flowctl.delivery.options import DOORS, OPTIONS, Option

INTRODUCTION = """\
# Options

What the doors of flowctl take. An option has the same name, meaning and default behind each door
that takes it. A name that a door does not know is refused, and the error lists those that it knows.
[spark-writes.md](spark-writes.md) explains `flow_sink`, [apply.md](apply.md) `apply`,
[streaming.md](streaming.md) streams, [pacing.md](pacing.md) `paced`. A `FlowControlSpout` has
[settings](settings.md) besides its parts.

`make options` makes this page from the table by which the doors check what they are given.
"""


def page() -> str:
    """Return the page."""
    rows = [
        f"| `{one.name}` | {one.says} | {_default(one)} | {one.meaning} | "
        + " | ".join("yes" if door in one.doors else "" for door in DOORS)
        + " |"
        for one in OPTIONS
    ]
    head = f"| option | give | default | meaning | {' | '.join(DOORS.values())} |"
    return "\n".join([INTRODUCTION, head, "|---|---|---|---|" + "---|" * len(DOORS), *rows, ""])


def _default(option: Option) -> str:
    if option.default in (None, "", ()):
        return "–"
    if isinstance(option.default, str | bool):
        return f"`{option.default!r}`"
    return f"{option.default:,}"


if __name__ == "__main__":
    sys.stdout.write(page())
