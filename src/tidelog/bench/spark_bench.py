"""`tidelog bench spark`: the Spark source and sink beside Spark's own `kafka` format, on one broker.

What always holds: both formats run in one session, read the same topic of a Tidelog broker and write the same rows,
one after the other and first in turn; each load has run before it is measured. The ratio is to Spark's own format.
Queries with next to nothing to do come before the large loads: they run in sessions that do nothing else, and are not
to be measured in a JVM that has fitted itself to something else.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.bench import comparison
from tidelog.bench import spark_loads as loads
from tidelog.bench.brokers import TidelogBroker
from tidelog.bench.comparison import Progress
from tidelog.bench.errors import MeasurementError
from tidelog.bench.processes import touch_memory
from tidelog.bench.report import Row
from tidelog.bench.spark_loads import OURS, SPARKS, SparkStage
from tidelog.bench.spark_peer import session_with_both
from tidelog.bench.stage import led_topic, work_directory

_TOUCHED_BYTES = 3 << 30
# Enough for the JVM to compile what it will run; figures of smaller ones would be those of its interpreter.
_WARM_RECORDS_MIN = 1_000_000
# A small batch runs little code often: it gets faster over its first thousand, and who runs second is ahead until then.
_SMALL_WARM_RUNS = 8
EXACTLY_ONCE = "stream into a topic, exactly once, against ours at least once"


@dataclass(frozen=True)
class Plan(comparison.Plan):
    """How much is measured."""

    runs: int = 2
    records: int = 5_000_000

    @property
    def sink_rows(self) -> int:
        return self.records // 5


@dataclass(frozen=True, slots=True)
class _Load:
    what: str
    unit: str
    run: Callable[[SparkStage, str], float]
    higher_is_better: bool = True
    formats: tuple[str, ...] = (OURS, SPARKS)
    warm_runs: int = 1
    # How often each format has its turn in a run. Short loads show what went on before them, in Spark's processes and
    # on the disk: with several turns each format is first in turn.
    turns: int = 1


def _exactly_once(stage: SparkStage, format_name: str) -> float:
    return loads.stream_sink(stage, format_name, "exactly-once")


_LOADS = (
    _Load("batch read into noop", "rows/s", loads.batch_noop),
    _Load("batch count by minute", "rows/s", loads.batch_window),
    _Load("batch read into Parquet", "rows/s", loads.batch_parquet),
    _Load("stream into noop", "rows/s", loads.stream_noop),
    _Load("stream count by minute", "rows/s", loads.stream_window),
    _Load("stream into Parquet", "rows/s", loads.stream_parquet),
    _Load("batch into a topic, at least once", "rows/s", loads.batch_sink, turns=3),
    _Load("stream into a topic, at least once", "rows/s", loads.stream_sink, turns=3),
    _Load(EXACTLY_ONCE, "rows/s", _exactly_once, formats=(OURS,), turns=3),
)
_SMALL_LOADS = (
    _Load("micro-batch of one row", "ms", loads.small_batch_ms, False, warm_runs=_SMALL_WARM_RUNS, turns=4),
    _Load("idle query", "% of a core", loads.idle_cpu_percent, False, turns=2),
)
_AT_LEAST_ONCE = "stream into a topic, at least once"

Figures = dict[tuple[str, str], list[float]]


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[Row]:
    """Measure both formats; rows in the order of the docs' table."""
    touch_memory(_TOUCHED_BYTES)
    with (
        work_directory(directory) as work,
        TidelogBroker(work / "tidelog") as broker,
        led_topic(broker, "read", partitions=loads.PARTITIONS),
        led_topic(broker, "warm", partitions=loads.PARTITIONS),
        led_topic(broker, "few"),
        session_with_both(work) as spark,
    ):
        warm_records = max(plan.records // 10, min(_WARM_RECORDS_MIN, plan.records))
        stage = SparkStage(spark, broker, work, plan.records, plan.sink_rows)
        progress(f"writing {plan.records:,} records and {plan.sink_rows:,} rows")
        loads.write_inputs(stage)
        loads.send_records(broker, "warm", warm_records)
        warm = SparkStage(spark, broker, work, warm_records, plan.sink_rows, topic="warm", numbers=stage.numbers)
        figures: Figures = {}
        for what, some in (("small loads", _SMALL_LOADS), ("large loads", _LOADS)):
            progress(f"{what}: warming up")
            _warm_up(warm, some, is_try=plan.records < _WARM_RECORDS_MIN)
            for run in range(plan.runs):
                progress(f"{what}: run {run + 1} of {plan.runs}")
                _measure(stage, some, figures, theirs_first=run % 2 == 1, progress=progress)
    return _rows(figures)


def _warm_up(stage: SparkStage, some: Sequence[_Load], *, is_try: bool) -> None:
    """Run each load as often as it needs to; in a mere try, whose figures tell little anyway, once."""
    for load in some:
        for _ in range(1 if is_try else load.warm_runs):
            for format_name in load.formats:
                load.run(stage, format_name)


def _measure(
    stage: SparkStage, some: Sequence[_Load], figures: Figures, *, theirs_first: bool, progress: Progress
) -> None:
    for load in some:
        for format_name in _turns(load, theirs_first):
            figure = load.run(stage, format_name)
            if figure <= 0:
                raise MeasurementError(f"{load.what} with {format_name} measured nothing")
            progress(f"{load.what}, {format_name}: {figure:,.6g} {load.unit}")
            figures.setdefault((load.what, format_name), []).append(figure)


def _turns(load: _Load, theirs_first: bool) -> list[str]:
    """Which format runs when: there and back again, so that none is always first."""
    order = load.formats[::-1] if theirs_first else load.formats
    return [name for turn in range(load.turns) for name in (order[::-1] if turn % 2 else order)]


def _rows(figures: Figures) -> list[Row]:
    rows = []
    for load in (*_LOADS, *_SMALL_LOADS):
        ours = figures[load.what, OURS]
        theirs = figures[load.what, SPARKS] if SPARKS in load.formats else figures[_AT_LEAST_ONCE, OURS]
        target = 1.0 if SPARKS in load.formats else 0.8
        medians = statistics.median(ours), statistics.median(theirs)
        rows.append(Row(load.what, load.unit, *medians, load.higher_is_better, target))
    return rows
