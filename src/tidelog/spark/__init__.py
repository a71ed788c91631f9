"""Topics as DataFrames: a source and a sink for Spark 4, with the columns and options of Spark's own `kafka` format.

They are Python data sources: no jar is resolved. Importing this package imports pyspark; nothing else of tidelog does.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from typing import TYPE_CHECKING

from tidelog.spark.data_source import TidelogDataSource
from tidelog.spark.worker_python import VARIABLE, use_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TidelogDataSource", "register", "use_this_python"]

log = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Make `format("tidelog")` known to a session, for reading and writing, batches and streams."""
    spark.dataSource.register(TidelogDataSource)
    _warn_of_other_python()


def _warn_of_other_python() -> None:
    """Spark runs its Python processes with `python3` of the path, which in an environment that is not activated is
    another one: there they end with a traceback that names no cause."""
    if VARIABLE in os.environ:
        return
    found = shutil.which("python3")
    if found is None or os.path.dirname(found) != os.path.dirname(sys.executable):
        log.warning(
            "Spark will run %s, which may lack tidelog; before the session is made, call "
            "tidelog.spark.use_this_python(), or set PYSPARK_PYTHON=%s",
            found or "python3",
            sys.executable,
        )
