"""What Spark tells, as values and as lines for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidelog.pipeline import Json, Pipeline, TopicInput, TopicOutput
from tidelog.pipeline.failures import query_failure, transform_failure
from tidelog.pipeline.progress import ProgressReader, refused_counts


def transform(orders: Any) -> Any:
    return orders


PIPELINE = Pipeline(
    name="shop",
    version=1,
    inputs={"orders": TopicInput("orders", format=Json("id long"))},
    transform=transform,
    outputs=[TopicOutput("out")],
)
LOG = Path("/state/spark.log")

IN_A_WORKER = f"""[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure
Traceback (most recent call last):
  File "/usr/lib/python/pyspark/worker.py", line 100, in main
    process()
  File "{__file__}", line 77, in half
    return 1 / row
ZeroDivisionError: division by zero
 SQLSTATE: XXKST
"""


def test_an_error_in_a_function_of_the_users() -> None:
    failure = query_failure(Exception(IN_A_WORKER), PIPELINE, None, LOG)
    assert str(failure).startswith(f"{__file__}:77: ZeroDivisionError: division by zero; here one bad row")
    assert str(LOG) in str(failure)
    assert failure.details == IN_A_WORKER


def test_an_error_of_sparks_own() -> None:
    text = (
        "[STREAM_FAILED] Query terminated with exception: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`\n\tat org"
    )
    failure = query_failure(Exception(text), PIPELINE, None, LOG)
    line = transform.__code__.co_firstlineno
    assert str(failure).startswith(f"{__file__}:{line}: Division by zero. Use `try_divide` [DIVIDE_BY_ZERO]")


def test_an_error_without_a_name() -> None:
    assert "it broke" in str(query_failure(Exception("it broke\n\tat org.apache"), PIPELINE, None, LOG))
    assert "without a message" in str(query_failure(Exception(""), PIPELINE, None, LOG))


def test_an_error_while_the_query_is_put_together() -> None:
    def broken() -> None:
        raise KeyError("colour")

    try:
        broken()
    except KeyError as error:
        failure = transform_failure(error, PIPELINE, None)
    line = broken.__code__.co_firstlineno + 1
    assert str(failure) == f"{__file__}:{line}: KeyError: 'colour'"
    assert "Traceback" in failure.details


def batch(batch_id: int, end: int, *, is_idle: bool = False, observed: Any = None) -> Any:
    class Told:
        json = json_of(batch_id, end, is_idle, observed)

    return Told


def json_of(batch_id: int, end: int, is_idle: bool, observed: Any) -> str:
    durations = {"triggerExecution": 40} if is_idle else {"triggerExecution": 250, "addBatch": 200}
    return json.dumps(
        {
            "batchId": batch_id,
            "numInputRows": 0 if is_idle else 10,
            "processedRowsPerSecond": 40.0,
            "durationMs": durations,
            "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
            "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 100}, {"numRowsTotal": 4, "memoryUsedBytes": 1}],
            "sources": [{"endOffset": {"orders": {"0": end}}}, {"endOffset": None}],
            "observedMetrics": observed or {},
        }
    )


class Query:
    """A query that has told these things."""

    def __init__(self) -> None:
        self.recentProgress: list[Any] = []

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        return self.recentProgress[-1] if self.recentProgress else None


def test_every_batch_once_and_in_order() -> None:
    query: Any = Query()
    reader = ProgressReader(query, {"orders": {0: 5, 1: 7}})
    assert reader.news() == []
    query.recentProgress += [batch(0, 10), batch(1, 20), batch(2, 30)]
    assert [document["batchId"] for document in reader.news()] == [0, 1, 2]
    assert reader.news() == []
    query.recentProgress.append(batch(3, 30, is_idle=True))
    assert reader.news() == []
    query.recentProgress += [batch(3, 40)]
    [document] = reader.news()
    progress = reader.progress(document, {"orders": {0: 45, 1: 9}}, 2)
    assert progress.processed == {"orders": {0: 40, 1: 7}}
    assert progress.lag == {"orders": {0: 5, 1: 2}}
    assert (progress.rows, progress.state_rows, progress.state_bytes, progress.dead_letters) == (40, 7, 101, 2)
    assert (progress.batch_id, progress.batch_ms) == (3, 250)
    assert progress.details["watermark"] == "2026-01-01T00:00:00.000Z"


def test_what_a_batch_has_refused() -> None:
    told = json.loads(batch(0, 1, observed={"dead_letters_orders": {"rows": 3}, "other": {"rows": 9}}).json)
    assert refused_counts(told) == {"orders": 3}
    assert refused_counts(json.loads(batch(0, 1).json)) == {}
