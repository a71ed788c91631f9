"""The entry point of the format `tidelog`: it tells Spark which classes read and write, and does nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class TidelogDataSource(DataSource):
    """`spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `format("tidelog")`."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        """The columns of Spark's own `kafka` format; the reader's `schema(...)` may list fewer."""
        from tidelog.spark.columns import full_schema
        from tidelog.spark.options import option_of

        return full_schema(include_headers=option_of(self.options, "includeHeaders"))

    def reader(self, schema: StructType) -> DataSourceReader:
        from tidelog.spark.reader import make_reader

        return make_reader(schema, self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tidelog.spark.prefetched_rows import make_stream_reader

        return make_stream_reader(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tidelog.spark.sink import make_batch_writer

        return make_batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from tidelog.spark.sink import make_stream_writer

        return make_stream_writer(schema, self.options, overwrite)
