"""What a bolt of a topology did with the inputs of one tuple, sent with that tuple's ack.

So it is atomic: a worker that dies before its ack has emitted nothing, failed nothing and holds
nothing.  Inputs are named by their ids, which are the positions of the records that they came as.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

DEFAULT_STREAM = "default"


class Emitted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One emit: ``value`` joins the trees of ``anchors``, which are input ids; none: untracked.

    ``stream`` None is the default one.  ``task`` is the receiver's number for direct groupings.
    """

    value: Any
    anchors: list[int]
    stream: str | None = None
    task: int | None = None


class FailedInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An input that was failed, and why.

    ``refused``: the input is fine, but its target has no room or is away; ``after_s`` is how long
    the target asked to be left alone [s], None: it did not say.  ``is_data_error``: what was raised
    is about a value, so the target is not to blame.
    """

    input_id: int
    reason: str
    refused: bool = False  # peers may lack the fields from here on
    after_s: float | None = None
    is_data_error: bool = False


class ReportedError(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An error that a bolt reported without failing anything; without secrets."""

    kind: str
    problem: str


# The sum of what was measured, and how often that was.
Sum: TypeAlias = tuple[float, int]


class Watched(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a bolt's task did and reported since its last settlement, to be added up.

    ``executed``, ``acked``, ``failed`` and the times [s] are by source (``component`` or
    ``component/stream``, S67), ``emitted`` by stream; ``counts`` and ``means`` are the user's own,
    by name.  ``host`` and ``pid`` come with the first one of a connection.
    """

    executed: dict[str, int] = {}
    acked: dict[str, int] = {}
    failed: dict[str, int] = {}
    emitted: dict[str, int] = {}
    execute_s: dict[str, Sum] = {}
    process_s: dict[str, Sum] = {}
    counts: dict[str, int] = {}
    means: dict[str, Sum] = {}
    errors: list[ReportedError] = []
    errors_left_out: int = 0
    host: str = ""
    pid: int = 0


class Settlement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of a tuple's inputs: inputs that are not named here are acked.

    ``held``: inputs of this tuple that are neither acked nor failed yet.  ``acked``: inputs held
    since an earlier tuple and acked now.  ``failed``: of this or an earlier tuple.  ``prolonged``:
    inputs whose trees get new time.  ``watched``: metrics of the task; None: there are none.
    """

    emits: list[Emitted] = []
    failed: list[FailedInput] = []
    held: list[int] = []
    acked: list[int] = []
    prolonged: list[int] = []
    watched: Watched | None = None  # last, so that peers may lack it
