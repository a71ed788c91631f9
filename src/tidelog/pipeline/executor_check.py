"""Checks before a query starts that Python works on a cluster's executors, and names any packages that are missing."""

from __future__ import annotations

import importlib
import re
import sys
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDED = ("pyarrow", "pandas", "tidelog")
_REASON = re.compile(r"\w+Error: .{0,200}|Cannot run program \"[^\"]+\"|Python in worker has different version.{0,120}")


def check_executors(session: SparkSession) -> None:
    """Raise PipelineError, with what to do, if Python on the workers can't run what was sent to it."""
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        [found] = session.sparkContext.parallelize([0], 1).map(_look).collect()
    except Exception as error:
        words = " ".join(str(error).split())
        named = _REASON.search(words)
        reason = named.group() if named else words[:200]
        raise PipelineError(
            f"Python does not work on the executors: {reason}; set --conf spark.pyspark.python=PATH to a Python "
            f"{wanted} that exists on all machines, including this one"
        ) from error
    missing = [name for name in _NEEDED if name not in found["packages"]]
    if missing:
        raise PipelineError(
            f"Python on the executors ({found['executable']}) has no {' and no '.join(missing)}; install what is "
            f"missing there, or choose another Python with --conf spark.pyspark.python=PATH"
        )


def _look(_: int) -> dict[str, Any]:
    """Runs on an executor."""
    packages = []
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        packages.append(name)
    return {"executable": sys.executable, "packages": packages}
