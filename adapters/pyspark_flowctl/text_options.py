"""Options of ``format("flowctl")``: text, with names in any case, as Spark passes them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from flowctl.errors import ConfigError

# Options that Spark adds itself; the last one for .queryName(…), as in declarative pipelines.
SPARKS = frozenset({"checkpointlocation", "queryname"})


def named_object(field: str, given: str, what: str) -> Any:
    """Return the object that ``package.module:name`` names; ``what`` describes it for errors."""
    remedy = f"Name {what} in an installed module: .option({field!r}, 'package.module:name')."
    module, colon, path = given.partition(":")
    if not given:
        raise ConfigError(field, "is missing.", remedy=remedy)
    if not (module and colon and path):
        raise ConfigError(field, f"{given!r} is not module:name.", remedy=remedy)
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            field,
            f"module {module!r} can't be imported here: {error}.",
            remedy="Install it on the driver and on all workers.",
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigError(field, f"{module!r} has no {path!r}.", remedy=remedy) from None
    return found


def check_known(left: Sequence[str], known: Sequence[str]) -> None:
    """Raise :class:`ConfigError` for an unknown option, which may be a typo."""
    if "path" in left:
        raise ConfigError(
            "path",
            "has no meaning here: format('flowctl') has no path of its own.",
            remedy="Leave it out: .save(), .start(), .load(). A source's files are"
            " .option('producer.paths', …).",
        )
    if unknown := sorted(set(left) - SPARKS):
        raise ConfigError(
            unknown[0],
            "is not an option of flowctl.",
            remedy=f"There are: {', '.join(known)}.",
        )
