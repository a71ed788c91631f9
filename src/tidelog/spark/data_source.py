"""The format `tidelog` as Spark sees it: which class reads and which writes. All work is done by those."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class TidelogDataSource(DataSource):
    """`spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `format("tidelog")`."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"
