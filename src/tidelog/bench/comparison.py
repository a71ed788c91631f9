"""What all comparisons with Apache Kafka share: the plan's runs, whose turn it is, the figures, the rows of the table.

What always holds: both sides are measured equally often and each comes first equally often, so that a drift of the
machine favours neither; a row is the median of its runs; whatever ends a comparison, its brokers end with it.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tidelog.bench.brokers import BrokerProcess, KafkaBroker, TidelogBroker, kafka_jars
from tidelog.bench.errors import PlanError
from tidelog.bench.processes import available_memory_bytes, touch_memory
from tidelog.bench.report import Row
from tidelog.bench.stage import work_directory
from tidelog.bench.workload import Throughput

Progress = Callable[[str], None]
SideT = TypeVar("SideT")

_MEMORY_TOUCHED = 0.7


@dataclass(frozen=True)
class Plan:
    """How much is measured. `rows` are names of parts of the table; none: all of it."""

    runs: int = 4
    rows: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.runs < 2 or self.runs % 2:
            raise PlanError(f"runs must be even, so that each side comes first equally often, not {self.runs}")
        known = self.known_rows()
        unknown = [name for name in self.rows if name not in known]
        if unknown:
            raise PlanError(f"there are no rows called {', '.join(unknown)}; choose from {', '.join(known)}")

    @classmethod
    def known_rows(cls) -> Sequence[str]:
        """The parts of the table that can be measured without the others, in its order."""
        return ()

    @property
    def chosen(self) -> list[str]:
        return [name for name in self.known_rows() if not self.rows or name in self.rows]


class Samples:
    """What one side took: for each quantity, the figures of its runs."""

    def __init__(self) -> None:
        self._figures: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, quantity: str, figure: float) -> None:
        self._figures[quantity].append(figure)

    def add_throughput(self, quantity: str, run: Throughput) -> None:
        self.add(f"{quantity} records/s", run.records_per_s)
        self.add(f"{quantity} CPU", run.cpu_s_per_gb)

    @contextmanager
    def clock(self, quantity: str) -> Iterator[None]:
        """Add how many seconds the work inside takes."""
        began_s = time.perf_counter()
        yield
        self.add(quantity, time.perf_counter() - began_s)

    def median(self, quantity: str) -> float:
        return statistics.median(self._figures[quantity])

    def __getitem__(self, quantity: str) -> Sequence[float]:
        return self._figures[quantity]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)


@dataclass(frozen=True, slots=True)
class Quantity:
    """One row of a table: its name in samples, the text for readers, and the goal."""

    name: str
    what: str
    unit: str
    goal: float | None = None
    higher_is_better: bool = False
    # Beside the ratio: what our own figure must stay below.
    limit: float | None = None


def throughput(name: str, what: str, goal: float | None, cpu_goal: float | None = None) -> list[Quantity]:
    """The two rows of what `Samples.add_throughput` added."""
    return [
        Quantity(f"{name} records/s", what, "records/s", goal, higher_is_better=True),
        Quantity(f"{name} CPU", what, "broker CPU s/GB", cpu_goal),
    ]


def rows(quantities: Sequence[Quantity], ours: Samples, theirs: Samples) -> list[Row]:
    """The table's rows, in the order of the quantities."""
    return [
        Row(
            quantity.what,
            quantity.unit,
            ours.median(quantity.name),
            theirs.median(quantity.name),
            quantity.higher_is_better,
            quantity.goal,
            quantity.limit,
        )
        for quantity in quantities
    ]


@dataclass(slots=True)
class Side:
    """A broker and what it took."""

    broker: BrokerProcess
    samples: Samples = field(default_factory=Samples)


def in_turn(sides: Sequence[SideT], run: int) -> Sequence[SideT]:
    """Both sides; who goes first alternates from run to run."""
    return sides if run % 2 == 0 else sides[::-1]


def prepare_kafka(progress: Progress) -> None:
    progress("getting Apache Kafka's jars (the first time only)")
    kafka_jars()


def touch_free_memory(progress: Progress) -> None:
    """Before large loads: a host may take back what is free for long, and whoever uses it first would pay for that."""
    progress("touching the machine's free memory, so that neither side is the first to use it")
    touch_memory(int(available_memory_bytes() * _MEMORY_TOUCHED))


@contextmanager
def both_running(
    directory: Path | None, progress: Progress, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[Path, Sequence[Side]]]:
    """A directory to work in, and both brokers running in it, ours first; all of it is gone afterwards."""
    prepare_kafka(progress)
    with (
        work_directory(directory) as work,
        TidelogBroker(work / "tidelog", settings=settings) as ours,
        KafkaBroker(work / "kafka", settings=settings) as theirs,
    ):
        yield work, (Side(ours), Side(theirs))


def measure_new_brokers(
    runs: int,
    directory: Path | None,
    progress: Progress,
    measure: Callable[[BrokerProcess, Samples], None],
) -> tuple[Samples, Samples]:
    """Measure a new broker of each kind, with an empty directory, in every run; `measure` starts it."""
    prepare_kafka(progress)
    ours, theirs = Samples(), Samples()
    sides: list[tuple[type[TidelogBroker] | type[KafkaBroker], Samples]] = [
        (TidelogBroker, ours),
        (KafkaBroker, theirs),
    ]
    for run in range(runs):
        for kind, samples in in_turn(sides, run):
            progress(f"run {run + 1} of {runs}: {kind.name}")
            with work_directory(directory) as work:
                broker: BrokerProcess = kind(work)
                try:
                    measure(broker, samples)
                finally:
                    broker.kill()
    return ours, theirs
