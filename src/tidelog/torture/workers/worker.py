"""What every worker has: its orders, its history, its progress, and an ear for those who lead it.

A worker is led by lines on its standard input: `quiet` (send nothing new), `drain {"topic-0": 17}` (read on up to these
offsets). The end of the input, or SIGTERM, ends it; so no worker outlives the run that started it.

What always holds: `ENDED_OK` means that everything asked for was done; `RESTART` that a client failed for good, as an
application would that its supervisor starts again. Any other end is a mistake in the worker or in a client.
"""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from tidelog.client.errors import ClientError, ConfigError, UsageError
from tidelog.torture.history import FAIL, OK, UNDER_WAY, UNKNOWN, HistoryWriter, Operation
from tidelog.torture.workers.progress_page import Phase, ProgressPage

ENDED_OK: Final = 0
RESTART: Final = 75  # EX_TEMPFAIL of sysexits.h
# So that clients of a broker that hangs look for another one soon; the default is 30 s.
REQUEST_TIMEOUT_MS: Final = 5_000
# Far more than any client takes to give up; one that is still silent then would stay so.
PATIENCE_S: Final = 90.0
# Values of different workers, and of a restarted one, must differ.
VALUES_PER_WORKER: Final = 2**32


@dataclass(frozen=True)
class Orders:
    """What a worker is told at its start, as JSON on its command line."""

    name: str  # of its history, too
    number: int  # no other worker of the workload, before or after, has it
    bootstrap: str
    history: str
    progress: str
    seed: int


class Lead:
    """Listens to standard input and SIGTERM."""

    def __init__(self) -> None:
        self._changed = threading.Event()
        self._over = threading.Event()
        self.is_quiet = False
        self.ends: dict[str, int] | None = None

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def listen(self) -> None:
        """Start to listen; signals are handled in the main thread only."""
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._read, name="lead", daemon=True).start()

    def pause(self, seconds: float) -> None:
        """Wait that long before more is sent, or until there are other orders."""
        if seconds > 0 and not (self.is_over or self.is_quiet):
            self._changed.wait(seconds)
            self._changed.clear()

    def back_off(self, seconds: float) -> None:
        """Wait that long before trying again, or until it is over."""
        self._over.wait(seconds)

    def obey(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        if command == "quiet":
            self.is_quiet = True
        elif command == "drain":
            self.is_quiet = True
            self.ends = json.loads(argument)
        else:
            raise ValueError(f"a worker does not know the order {line!r}")
        self._changed.set()

    def _read(self) -> None:
        for line in sys.stdin:
            self.obey(line.strip())
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._changed.set()


class Pace:
    """Spreads records over time: at most so many a second on average, in bursts."""

    # What was missed while nothing could be sent is not made up for, beyond this.
    _ARREARS_S = 0.5

    def __init__(self, rate: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._now = now
        self._next_s = now()

    def spend(self, records: int) -> float:
        """These records are being sent; returns how long to wait before the next ones."""
        if self._rate <= 0:
            return 0.0
        now_s = self._now()
        self._next_s = max(self._next_s, now_s - self._ARREARS_S) + records / self._rate
        return max(self._next_s - now_s, 0.0)


class Worker(ABC):
    """One worker; subclasses do the work in `run`."""

    orders_class: ClassVar[type[Orders]] = Orders

    def __init__(self, orders: Orders, lead: Lead | None = None) -> None:
        self.lead = lead or Lead()
        self.random = random.Random(f"{orders.seed} {orders.name}")
        self.page = ProgressPage(Path(orders.progress))
        self.history = HistoryWriter(Path(orders.history))
        self._name = orders.name
        self._next_value = orders.number * VALUES_PER_WORKER

    @abstractmethod
    def run(self) -> None:
        """Work until the lead says that it is over."""

    def close(self) -> None:
        self.history.close()
        self.page.close()

    def new_value(self) -> int:
        """A value that nobody else sends."""
        self._next_value += 1
        return self._next_value

    def note(
        self,
        f: str,
        outcome: str,
        start_ns: int,
        events: list[list[Any]],
        error: object = "",
        end_ns: int | None = None,
    ) -> None:
        """Add an operation to the history."""
        ended_ns = time.monotonic_ns() if end_ns is None else end_ns
        self.history.write(Operation(self._name, f, outcome, start_ns, ended_ns, events, describe(error)))

    def announce(self, f: str, start_ns: int, events: list[list[Any]]) -> None:
        """Note an operation before its last step; its end must be the next that is noted."""
        self.note(f, UNKNOWN, start_ns, events, UNDER_WAY)

    def count(self, outcome: str, records: int) -> None:
        """Add to the counters that the run shows."""
        self.page.attempted += records
        if outcome == OK:
            self.page.acknowledged += records
        elif outcome in (FAIL, UNKNOWN):
            self.page.failed += records
        self.page.moved()

    def enter(self, phase: Phase) -> None:
        if self.page.phase is not phase:
            self.page.phase = phase
            self.page.moved()


def describe(error: object) -> str:
    """An error as one line for the history."""
    if not isinstance(error, BaseException):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())


def say(text: str) -> None:
    """A line for the worker's log, which is its standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def run_worker(worker_class: type[Worker], arguments: Sequence[str] | None = None) -> int:
    """Run a worker in this process to its end; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    given = sys.argv[1:] if arguments is None else arguments
    orders = worker_class.orders_class(**json.loads(given[0]))
    lead = Lead()
    lead.listen()
    worker = worker_class(orders, lead=lead)
    try:
        worker.run()
    except ClientError as error:
        if isinstance(error, (ConfigError, UsageError)):
            raise  # no cluster brings that about
        if lead.is_over:
            return ENDED_OK
        traceback.print_exception(error)
        say(f"ends, to be started again: {describe(error)}")
        return RESTART
    finally:
        worker.close()
    return ENDED_OK
