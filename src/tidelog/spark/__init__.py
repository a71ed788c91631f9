"""Topics as DataFrames: a source and a sink for Spark 4, with the columns and options of Spark's own `kafka` format.

They are Python data sources: no jar is resolved. Importing this package imports pyspark; nothing else of tidelog does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.spark.data_source import TidelogDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TidelogDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("tidelog")` known to a session, for reading and writing, batches and streams."""
    spark.dataSource.register(TidelogDataSource)
