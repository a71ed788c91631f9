"""Spark looks for packages named `pyspark_<name>` and registers their `DefaultSource`: so `format("tidelog")` is known
wherever tidelog is installed, in Spark Connect and in declarative pipelines too, without a line of code."""

from __future__ import annotations

from tidelog.spark.data_source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
