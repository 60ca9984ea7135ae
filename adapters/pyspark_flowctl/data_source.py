"""``format("flowctl")``: what Spark finds by this name, without registration."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from flowctl.errors import ConfigError
from pyspark_flowctl.sink_writers import BatchWriter, StreamWriter, sink_of

_NAMED = "Name a function in an installed module: .option('process', 'package.module:function')."


class FlowctlSource(DataSource):
    """Rows out to a target, paced, by a function that an option names."""

    @classmethod
    def name(cls) -> str:
        """What ``format()`` calls it."""
        return "flowctl"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a DataFrame (``df.write``)."""
        if overwrite:
            raise ConfigError(
                "mode",
                "overwrite would first have to empty the target, which flowctl can't.",
                remedy="Write .mode('append').",
            )
        return BatchWriter(sink_of(dict(self.options), loaded(self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what writes each batch of a stream (``writeStream``)."""
        return StreamWriter(sink_of(dict(self.options), loaded(self.options)))


def loaded(options: Mapping[str, str]) -> Callable[..., Any]:
    """Return the function, or the sink, that the option ``process`` names."""
    given = options.get("process", "")
    module, colon, path = given.partition(":")
    if not given:
        raise ConfigError("process", "is missing.", remedy=_NAMED)
    if not (module and colon and path):
        raise ConfigError("process", f"{given!r} is not module:function.", remedy=_NAMED)
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            "process",
            f"module {module!r} can't be imported here: {error}.",
            remedy="Install it on the driver and on all workers.",
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigError("process", f"{module!r} has no {path!r}.", remedy=_NAMED) from None
    function: Callable[..., Any] = found
    return function
