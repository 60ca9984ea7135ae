"""The data source that Spark finds as ``format("flowctl")``, without registration."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from flowctl.errors import ConfigError
from pyspark_flowctl.column_types import check_sendable
from pyspark_flowctl.features import check_reads_streams
from pyspark_flowctl.sink_writers import BatchWriter, StreamWriter, sink_of
from pyspark_flowctl.stream_options import StreamOptions
from pyspark_flowctl.stream_task import RECORDS_SCHEMA


class FlowctlSource(DataSource):
    """Writes rows to a target, paced, and reads any producer as a stream, by options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        if options.get("producer"):
            StreamOptions.of(options)  # reports mistakes at load(), not in a query

    @classmethod
    def name(cls) -> str:
        """What ``format()`` calls it."""
        return "flowctl"

    def schema(self) -> str:
        """Return the schema of a stream without one of its own: its records."""
        if self.options.get("process"):
            raise ConfigError(
                "schema",
                "is missing: it says what process returns.",
                remedy="Add .schema('id long, name string').",
            )
        return RECORDS_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream (``readStream``)."""
        check_reads_streams()
        from pyspark_flowctl.stream_reader import reader_of

        return reader_of(dict(self.options), schema.json())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raise an error that names an alternative: there is no batch reader (``spark.read``)."""
        raise ConfigError(
            "format",
            "flowctl reads streams, not DataFrames.",
            remedy="Write spark.readStream…; with .trigger(availableNow=True) it ends when all is"
            " read. Or flowctl.apply.",
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame (``df.write``)."""
        if overwrite:
            raise ConfigError(
                "mode",
                "overwrite would first have to empty the target, which flowctl can't.",
                remedy="Write .mode('append').",
            )
        check_sendable(schema)
        return BatchWriter(sink_of(dict(self.options)), schema.json())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of each batch of a stream (``writeStream``)."""
        if overwrite:
            raise ConfigError(
                "outputMode",
                "complete gives the whole result with each batch, which flowctl can't put in the"
                " place of the one before.",
                remedy="Write .outputMode('append'), or replace it yourself in foreachBatch.",
            )
        check_sendable(schema)
        return StreamWriter(sink_of(dict(self.options)), schema.json())
