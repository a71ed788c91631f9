"""Topics as DataFrames: a source and a sink for Spark 4, with the columns and options of Spark's own `kafka` format.

Both are Python data sources, so no jar is needed. Only this package of tidelog imports pyspark.
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

logger = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Register `format("tidelog")` with a session, for reading and writing, in batches and streams."""
    spark.dataSource.register(TidelogDataSource)
    _warn_of_other_python()


def _warn_of_other_python() -> None:
    """Spark starts its Python processes with `python3` from the PATH. If this environment is not activated, that is a
    different interpreter, and the processes fail with a traceback that doesn't show the cause."""
    if VARIABLE in os.environ:
        return
    found = shutil.which("python3")
    if found is None or os.path.dirname(found) != os.path.dirname(sys.executable):
        logger.warning(
            "Spark will run %s, which may not have tidelog installed; call tidelog.spark.use_this_python() before you "
            "create the session, or set PYSPARK_PYTHON=%s",
            found or "python3",
            sys.executable,
        )
