"""The plan of a demo, derived from its seed and kept in its directory for a resumption."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flowctl.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

JOB = "demo"
SLOW_FACTOR = 10  # slow enough to be obvious
FILES = 8  # several partitions
# Begin and end of the slow phase as fractions of the run: long enough to see the window follow both
# ways.
_SLOW_FROM, _SLOW_TO = 0.25, 0.6
_KILL_FROM, _KILL_TO = 0.2, 0.8


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's choices; ``seconds`` is the time that the work itself should take [s]."""

    seed: int
    records: int
    bolts: int
    seconds: float
    local: bool = False
    files: int = FILES

    @property
    def slow_bolt(self) -> str:
        return f"b{random.Random(f'slow {self.seed}').randint(1, self.bolts)}"

    @property
    def slow_from_s(self) -> float:
        """Start of the slow phase, since the first tuple was begun [s]."""
        return self.seconds * _SLOW_FROM

    @property
    def slow_to_s(self) -> float:
        return self.seconds * _SLOW_TO

    @property
    def kill_at(self) -> float:
        """Fraction of the records in the saved checkpoint at which ``--kill`` strikes."""
        return random.Random(f"kill {self.seed}").uniform(_KILL_FROM, _KILL_TO)

    @property
    def cost_s(self) -> float:
        """Simulated cost of a record [s]: all bolts together need ``seconds`` for the job."""
        lost = (self.slow_to_s - self.slow_from_s) * (1 - 1 / SLOW_FACTOR)
        return (self.bolts * self.seconds - lost) / self.records

    def save(self, directory: Path) -> None:
        """Write the plan to ``directory``."""
        (directory / "plan.json").write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """Return the plan of an earlier demo in ``directory``; None if there is none."""
        path = directory / "plan.json"
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                "--dir",
                f"{path} is not the plan of a demo ({error}).",
                remedy="Give a new directory.",
            ) from None


class Places:
    """The places of a demo's parts in its directory; ``keep``: the directory is still needed."""

    def __init__(self, directory: Path, *, keep: bool = False) -> None:
        self.keep = keep
        self.root = directory
        self.logs: Path = directory / "logs"
        self.journal: Path = directory / "journal"
        self.redis: Path = directory / "redis"
        self.database: Path = directory / "access.db"
        self.outcome: Path = directory / "outcome.json"

    def make(self) -> None:
        """Create the directories."""
        for place in (self.logs, self.journal, self.redis):
            place.mkdir(parents=True, exist_ok=True)
