"""Spark as the sink sees it, played without Spark: runs of a query, their tasks, retries, speculation and replays.

Everything is decided by a seed: what goes wrong, when, and in which order tasks run. What is kept as Spark keeps it: a
batch is committed once all its tasks have reported; a commit that raises is followed by an abort; a run that fails, or
whose driver is killed, is followed by one that replays the batch with the same query id and batch id; only what a
finished commit has told moves the query on. The rows of a replayed batch are the same, but spread over its tasks in
another way.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from played_process import Action, Done, End, Failed, Fault, Moment, Write, main
from tidelog.spark.options import Use
from tidelog.spark.sink_identity import TaskReport
from tidelog.spark.sink_settings import SinkSettings, read_settings

TASK_ATTEMPTS_MAX = 6
RUNS_MAX = 12
ANSWER_WAIT_S = 60.0
REQUESTS = range(1, 16)  # a task makes up to nine, a commit up to fifteen
# Every step of the protocol, in an order of which any part is a fair sample.
STEPS = random.Random("steps").sample([(request, moment) for request in REQUESTS for moment in Moment], 45)
_processes = multiprocessing.get_context("forkserver")
# What takes long to import, once for all processes.
_processes.set_forkserver_preload(["tidelog.spark.sink", "tidelog.records.arrow_rows", "pandas", "uvloop"])


class Gone(Exception):  # noqa: N818  # it is what the played Spark reacts to, not an error
    """The process has died."""


class Stopped(Exception):  # noqa: N818
    """The process stands still."""


class PlayedProcess:
    """A worker, or the process that commits."""

    def __init__(self, broker_pid_file: Path, mistake: str | None) -> None:
        self._pipe, far_end = _processes.Pipe()
        self._process = _processes.Process(target=main, args=(far_end, broker_pid_file, mistake), daemon=True)
        self._process.start()
        far_end.close()
        self.is_busy = False

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def send(self, command: Write | End) -> None:
        try:
            self._pipe.send(command)
        except OSError:
            raise Gone from None
        self.is_busy = True

    def answer(self) -> Done | Failed:
        """Wait for what became of the command; raises Gone or Stopped."""
        deadline_s = time.monotonic() + ANSWER_WAIT_S
        try:
            while not self._pipe.poll(0.02):
                if self._is_stopped():
                    raise Stopped
                if time.monotonic() > deadline_s:
                    raise AssertionError("a process of the sink hangs")
            answer: Done | Failed = self._pipe.recv()
        except (EOFError, OSError):
            raise Gone from None
        self.is_busy = False
        return answer

    def _is_stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] in "tT"

    def wake(self) -> None:
        os.kill(self._process.pid or 0, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


class Plan(NamedTuple):
    """What a seed stands for."""

    batches: int
    tasks: int
    workers: int
    faults: dict[tuple[int, str], Fault]  # by the number of the command of its kind: "write", "commit" or "abort"

    @classmethod
    def of(cls, seed: int) -> Plan:
        """The first fault goes through all combinations as seeds go on, so that every step is hit; others are drawn."""
        source = random.Random(seed)
        tasks = source.randint(1, 4)
        kinds = [
            ("commit", Action.KILL),
            ("write", Action.KILL),
            ("commit", Action.STOP),
            ("commit", Action.KILL),
            ("write", Action.KILL),
            ("commit", Action.STOP),
            (source.choice(["commit", "write"]), Action.KILL_BROKER),
        ]
        kind, action = kinds[seed % len(kinds)]
        request, moment = STEPS[seed // len(kinds) % len(STEPS)]
        command = source.randint(0, 2 * tasks) if kind == "write" else source.randint(0, 2)
        faults = {(command, kind): Fault(action, request, moment)}
        for _ in range(source.randint(0, 2)):
            kind = source.choice(["write", "commit", "abort"])
            action = Action.STOP if kind == "commit" and source.random() < 0.5 else Action.KILL
            fault = Fault(action, source.choice(REQUESTS), source.choice(list(Moment)))
            faults.setdefault((source.randint(0, 3), kind), fault)
        return cls(source.randint(2, 4), tasks, source.randint(1, 3), faults)


@dataclass
class Journal:
    """What happened, for whoever looks into a seed that failed."""

    lines: list[str] = field(default_factory=list)
    kill_points: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def note(self, line: str) -> None:
        self.lines.append(f"{time.monotonic() - self.began_s:.2f} s {line}")


class Zombie(NamedTuple):
    """A driver that stands still in its commit while the next run goes on."""

    process: PlayedProcess
    command: End


class PlayedQuery:
    """One query, from its first batch to its last, with all that goes wrong on the way."""

    def __init__(
        self, seed: int, bootstrap: str, broker_pid_file: Path, *, mistake: str | None = None, two_phase: bool = False
    ) -> None:
        self.seed = seed
        self.topic = topic_of(seed)
        self.journal = Journal()
        self._source = random.Random(f"play {seed}")
        self._plan = Plan.of(seed)
        self._start_process: Callable[[], PlayedProcess] = lambda: PlayedProcess(broker_pid_file, mistake)
        self._settings = sink_settings(bootstrap, self.topic, two_phase=two_phase)
        self._workers: list[PlayedProcess] = []
        self._committer: PlayedProcess | None = None
        self._commands = {"write": 0, "commit": 0, "abort": 0}
        self._zombies: list[Zombie] = []
        self._run = 0
        self._speculates = self._source.random() < 0.5
        self.failure = ""  # why it did not come to its end
        self._is_given_up = False

    @property
    def query_id(self) -> str:
        return f"query-{self.seed}"

    def values(self, batch: int) -> list[str]:
        """The rows of a batch: every one is there once."""
        count = random.Random(f"{self.seed} {batch}").randint(1, 9)
        return [f"{self.seed}/{batch}/{number}" for number in range(count)]

    def expected(self) -> list[str]:
        return [value for batch in range(self._plan.batches + 1) for value in self.values(batch)]

    def give_up(self) -> None:
        """End soon, from another thread: nobody wants to know any more."""
        self._is_given_up = True

    def play(self) -> None:
        """All batches, and a last one in which nothing goes wrong, as the query would go on."""
        try:
            batch = 0
            self.journal.began_s = time.monotonic()
            while batch <= self._plan.batches and not self._is_given_up:
                if self._run > RUNS_MAX:
                    self.failure = f"batch {batch} was never committed"
                    break
                if batch == self._plan.batches:
                    self._wake_zombies()
                    self._plan.faults.clear()
                if self._play_batch(batch) and not self._is_killed_before_it_is_noted():
                    batch += 1
                else:
                    self._restart()
        finally:
            for process in [*self._workers, self._committer, *(zombie.process for zombie in self._zombies)]:
                if process is not None:
                    process.kill()
            self.journal.note("the end")

    def _is_killed_before_it_is_noted(self) -> bool:
        """The driver dies between the sink's commit and Spark's own note of it."""
        is_killed = bool(self._plan.faults) and self._source.random() < 0.1
        if is_killed:
            self.journal.note("killed after the commit, before Spark noted it")
        return is_killed

    def _restart(self) -> None:
        """The next run: in a new driver, or in the same application, whose workers live on."""
        self._run += 1
        if self._source.random() < 0.6:
            for process in [*self._workers, self._committer]:
                if process is not None:
                    process.kill()
            self._workers, self._committer = [], None
        self.journal.note(f"run {self._run}")

    # A batch

    def _play_batch(self, batch: int) -> bool:
        """Whether it was committed; otherwise the run is over."""
        reports = self._write_batch(batch)
        if self._source.random() < 0.3:
            self._wake_zombies()  # while the transactions of this run are open
        if all(report is not None for report in reports):
            if self._end(reports, is_commit=True, batch=batch):
                return True
            if self._committer is None and self._source.random() < 0.5:
                return False  # the driver died with it, so that nobody aborts
        self._end(reports, is_commit=False, batch=batch)
        return False

    def _write_batch(self, batch: int) -> list[TaskReport | None]:
        """The reports of the attempts that Spark takes, None for a task that failed too often."""
        shuffled = random.Random(f"{self.seed} {self._run} {batch}")
        values = self.values(batch)
        shuffled.shuffle(values)
        tasks = self._plan.tasks if not self._run else shuffled.randint(1, self._plan.tasks + 1)
        reports: list[TaskReport | None] = []
        for partition in range(tasks):
            reports.append(self._write_task(batch, partition, values[partition::tasks]))
            if reports[-1] is None:
                break
            if self._plan.faults and self._source.random() < 0.05:
                self.journal.note(f"batch {batch}: a worker dies after its report")
                self._workers.pop(self._source.randrange(len(self._workers))).kill()
        return reports

    def _write_task(self, batch: int, partition: int, values: Sequence[str]) -> TaskReport | None:
        for attempt in range(0 if self._is_given_up else TASK_ATTEMPTS_MAX):
            rivals_count = 2 if self._speculates and self._source.random() < 0.25 else 1
            is_repeated = self._speculates or attempt > 0
            rivals = [self._start_write(batch, partition, values, is_repeated) for _ in range(rivals_count)]
            found = []
            for worker in rivals:
                answer = self._answer_of(worker, f"batch {batch} task {partition} attempt {attempt}")
                if isinstance(answer, Done):
                    found.append(answer.result)
                elif isinstance(answer, Failed):
                    self.journal.note(f"batch {batch} task {partition} attempt {attempt}: {answer.error}")
            if found:
                report: TaskReport = self._source.choice(found)
                return report
        return None

    def _start_write(self, batch: int, partition: int, values: Sequence[str], is_repeated: bool) -> PlayedProcess:
        properties = {
            "sql.streaming.queryId": self.query_id,
            "streaming.sql.batchId": str(batch),
            "spark.jobGroup.id": f"run {self._run}",
            "spark.app.id": "played",
        }
        command = Write(self._settings, properties, partition, values, is_repeated, self._next_fault("write"))
        while True:
            worker = self._free_worker()
            try:
                worker.send(command)
                return worker
            except Gone:
                self._lose(worker)

    def _free_worker(self) -> PlayedProcess:
        while len(self._workers) < self._plan.workers:
            self._workers.append(self._start_process())
        free = [worker for worker in self._workers if not worker.is_busy]
        if not free:
            self._workers.append(self._start_process())
            return self._workers[-1]
        return self._source.choice(free)

    def _answer_of(self, worker: PlayedProcess, what: str) -> Done | Failed | None:
        try:
            return worker.answer()
        except Gone:
            self.journal.note(f"{what}: the worker is dead")
            self.journal.kill_points += 1
            self._lose(worker)
            return None

    def _lose(self, worker: PlayedProcess) -> None:
        worker.kill()
        self._workers.remove(worker)

    # Its end

    def _end(self, reports: Sequence[TaskReport | None], *, is_commit: bool, batch: int) -> bool:
        what = "commit" if is_commit else "abort"
        if self._committer is None:
            self._committer = self._start_process()
        command = End(self._settings, list(reports), is_commit, self._next_fault(what))
        try:
            self._committer.send(command)
            answer = self._committer.answer()
        except Gone:
            self.journal.note(f"batch {batch} {what}: the driver is dead")
            self.journal.kill_points += 1
            self._committer.kill()
            self._committer = None
            return False
        except Stopped:
            self.journal.note(f"batch {batch} {what}: the driver stands still")
            self.journal.kill_points += 1
            if not self._zombies or self._source.random() < 0.3:
                self._zombies.append(Zombie(self._committer, command))
                self._committer = None
                return False
            self._wake_zombies()  # while this one is in the middle of its commit
            self._committer.wake()
            answer = self._committer.answer()
        if isinstance(answer, Failed):
            self.journal.note(f"batch {batch} {what}: {answer.error}")
        return isinstance(answer, Done)

    def _wake_zombies(self) -> None:
        """Drivers that stood still while others went on end their commits now; where they fail, an abort follows."""
        for zombie in self._zombies:
            zombie.process.wake()
            try:
                answer = zombie.process.answer()
                self.journal.note(f"the zombie's commit: {answer}")
                if isinstance(answer, Failed):
                    zombie.process.send(zombie.command._replace(is_commit=False, fault=None))
                    self.journal.note(f"the zombie's abort: {zombie.process.answer()}")
            finally:
                zombie.process.kill()
        self._zombies = []

    def _next_fault(self, kind: str) -> Fault | None:
        number = self._commands[kind]
        self._commands[kind] += 1
        fault = self._plan.faults.get((number, kind))
        if fault is not None:
            self.journal.note(f"{kind} {number} brings {fault}")
        return fault


def topic_of(seed: int) -> str:
    return f"written-{seed}"


def sink_settings(
    bootstrap: str, topic: str, *, two_phase: bool = False, kafka: Mapping[str, str] | None = None
) -> SinkSettings:
    given: dict[str, Any] = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.request.timeout.ms": "10000",
        "kafka.default.api.timeout.ms": "30000",
        "kafka.reconnect.backoff.max.ms": "100",
        "kafka.retry.backoff.ms": "20",
        "kafka.retry.backoff.max.ms": "100",
        "topic": topic,
    }
    if two_phase:
        given["kafka.transaction.two.phase.commit.enable"] = "true"
    given |= {f"kafka.{name}": value for name, value in (kafka or {}).items()}
    return read_settings(given, Use.STREAM_WRITE, "")


def parse_seeds(text: str) -> Iterator[int]:
    """`7`, `3-9`, or several with commas."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
