"""Runs transactions against a broker in the simulation, disturbs them, and checks what is left: all from one seed.

What always holds: a run is decided by its seed; troubles end after a while, and from then on everything must come to
its end within a bounded time: every application commits all of its transactions, and none stays open.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from simulated_broker import Machines, SimulatedBroker
from simulated_client import Question, RefusedError, SimulatedClient
from simulated_clock import SimulatedClock
from simulated_kill import KillSwitch
from simulated_loop import Process, SimulatedLoop
from simulated_network import SimulatedNetwork, Weather
from tidelog.protocol.messages.k22_init_producer_id import INIT_PRODUCER_ID
from tidelog.protocol.messages.k26_end_txn import END_TXN
from tidelog.testing.raw_client import frame
from txn_application import PARTITIONS, SOURCE, TARGET, Application, Habits, committed_offset, write_source
from txn_ledger import End, Ledger
from txn_reader import READ_COMMITTED, READ_UNCOMMITTED, TopicReader

_LIMIT_S = 150.0
_LONG_MS = 60_000
_REPEATED_MAX = 40
_ZOMBIES_MAX = 4


@dataclass
class Outcome:
    """What a run has seen, so that tests can tell whether it was worth anything."""

    digest: int
    steps: int
    committed: int
    aborted: int
    refused: int
    broker_starts: int
    killed_in_writes: int
    repeated: int
    broken_connections: int
    late: int


@dataclass
class _Life:
    """A running life of an application."""

    number: int
    process: Process
    task: asyncio.Task[None]


@dataclass
class _Plan:
    """How a run is troubled; each seed has some troubles, so that they are seen alone as well."""

    weather: Weather
    trouble_s: float
    pause_s: float
    troubles: list[str] = field(default_factory=list)


class TransactionRun:
    """One run, in a directory of its own."""

    def __init__(self, seed: int, base: Path) -> None:
        self._random = random.Random(seed)
        self._loop = SimulatedLoop(self._rng())  # type: ignore[abstract]  # it has of a loop what brokers use
        self._plan = self._make_plan()
        self._network = SimulatedNetwork(self._loop, self._rng(), self._plan.weather)
        self._kills = KillSwitch(self._loop)
        self._clock = SimulatedClock(self._loop)
        self._machines = Machines(self._loop, self._network, self._kills)
        self._broker = SimulatedBroker(
            self._machines,
            base,
            {
                "offsets.topic.num.partitions": 2,
                "transaction.state.log.num.partitions": 2,
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
                "log.segment.bytes": self._random.choice((1 << 30, 2_000)),
            },
        )
        self._ledger = Ledger()
        self._habits = [self._make_habits(index) for index in range(self._random.randint(1, 3))]
        self._lives: dict[str, _Life] = {}
        self._zombies: list[_Life] = []
        self._sent: list[Question] = []
        self._to_die_at_end: set[str] = set()
        self._refused = 0
        self._repeated = 0
        self._was_init_repeated = False
        self._coordinator_losses = 0

    def _rng(self) -> random.Random:
        return random.Random(self._random.getrandbits(64))

    def _make_plan(self) -> _Plan:
        rng = self._random
        weather = Weather(
            delay_s=rng.choice((0.0005, 0.002, 0.02)),
            break_share=rng.choice((0.0, 0.01, 0.05)),
            split_share=rng.choice((0.0, 0.2)),
            late_share=rng.choice((0.0, 0.0, 0.05, 0.2)),
        )
        troubles = ["kill", "kill in write", "stop", "replace", "zombie", "reload", "repeat"]
        chosen = rng.sample(troubles, rng.randint(0, len(troubles)))
        return _Plan(weather, rng.uniform(0.5, 5.0), rng.choice((0.05, 0.2, 0.6)), chosen)

    def _make_habits(self, index: int) -> Habits:
        rng = self._random
        changes_id = rng.random() < 0.2
        return Habits(
            name=f"app-{index}",
            index=index,
            is_version_2=rng.random() < 0.6,
            changes_id=changes_id,
            transactions=rng.randint(3, 8),
            # Whoever comes with another id has to wait for the end of the transactions before it.
            timeout_ms=rng.choice((500, 3_000) if changes_id else (500, 3_000, 60_000, 60_000)),
            abort_share=rng.choice((0.1, 0.4)),
            restart_share=rng.choice((0.0, 0.2)),
            pause_s=rng.choice((0.01, 0.1, 0.3)),
        )

    # The run

    def run(self) -> Outcome:
        with self._machines.installed(self._rng()):
            # What a killed process was doing must not be collected while others run.
            gc.disable()
            try:
                self._loop.run(self._main(), _LIMIT_S)
            finally:
                self._broker.kill()
                self._loop.over()
                gc.enable()
        return Outcome(
            digest=self._loop.digest,
            steps=self._loop.steps,
            committed=self._ledger.count(End.COMMITTED),
            aborted=self._ledger.count(End.ABORT_ASKED),
            refused=self._refused,
            broker_starts=self._broker.starts,
            killed_in_writes=self._kills.mid_write,
            repeated=self._repeated,
            broken_connections=self._network.broken,
            late=self._network.late,
        )

    async def _main(self) -> None:
        await self._broker.start()
        await self._broker.create_topics({SOURCE: len(self._habits), TARGET: PARTITIONS})
        for habits in self._habits:
            await write_source(self._client(), habits.index, habits.transactions, self._clock.now_ms())
        reader = self._reader(READ_COMMITTED)
        reader.on_row = self._ledger.check_read
        reading = self._loop.spawn(self._loop.process("reader"), self._keep_reading(reader))
        for habits in self._habits:
            self._start(habits)
        await self._trouble()
        await self._settle()
        reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.result()
        await self._check(reader)
        assert not self._loop.failures, self._loop.failures

    async def _keep_reading(self, reader: TopicReader) -> None:
        while True:
            await reader.poll()

    async def _settle(self) -> None:
        """The troubles are over: everybody must come to an end."""
        self._network.weather.calm()
        self._kills.spare_all()
        self._to_die_at_end.clear()
        if not self._broker.is_up:
            await self._restart_broker()
        for zombie in self._zombies:
            zombie.process.is_paused = False
        for zombie in self._zombies:
            await zombie.task
        for habits in self._habits:
            life = None
            while self._lives[habits.name] is not life:
                life = self._lives[habits.name]
                await life.task

    async def _restart_broker(self) -> None:
        self._coordinator_losses += 1
        self._broker.kill()
        await self._broker.start()

    async def _check(self, reader: TopicReader) -> None:
        client = self._client()
        committed = {habits.name: await committed_offset(client, habits) for habits in self._habits}
        assert committed == {habits.name: habits.transactions for habits in self._habits}
        again = self._reader(READ_COMMITTED)
        for one in (again, reader):
            await one.read_to_end()
        assert again.rows == reader.rows, "a second reader finds something else than the first"
        self._ledger.check_committed(reader.rows, committed)
        everything = self._reader(READ_UNCOMMITTED)
        await everything.read_to_end()
        self._ledger.check_written(everything.rows)

    def _client(self, *, may_be_late: bool = False, timeout_s: float = 2.0) -> SimulatedClient:
        return SimulatedClient(self._network, self._rng(), may_be_late=may_be_late, timeout_s=timeout_s)

    def _reader(self, isolation_level: int) -> TopicReader:
        return TopicReader(self._client(), self._rng(), TARGET, PARTITIONS, isolation_level)

    # Applications

    def _start(self, habits: Habits) -> None:
        number = self._lives[habits.name].number + 1 if habits.name in self._lives else 1
        client = self._client(may_be_late=habits.is_version_2, timeout_s=self._random.choice((0.3, 2.0)))
        client.on_sent = functools.partial(self._on_sent, habits, number)
        application = Application(habits, number, client, self._clock, self._rng(), self._ledger)
        process = self._loop.process(f"{habits.name} life {number}")
        task = self._loop.spawn(process, self._live(application, number))
        self._lives[habits.name] = _Life(number, process, task)

    def _on_sent(self, habits: Habits, number: int, question: Question) -> None:
        if habits.is_version_2:
            # Before that version the broker can't tell a late request from one of the next transaction.
            self._sent.append(question)
            del self._sent[:-_REPEATED_MAX]
        if question.api is END_TXN and habits.name in self._to_die_at_end:
            self._to_die_at_end.discard(habits.name)
            self._loop.schedule(self._loop.outside, self._loop.time(), self._replace, habits, number)

    def _replace(self, habits: Habits, number: int) -> None:
        """Kill a life of an application and let another one follow."""
        life = self._lives[habits.name]
        if life.number == number and not life.task.done():
            self._loop.kill(life.process)
            self._start(habits)

    async def _live(self, application: Application, number: int) -> None:
        habits = application.habits
        try:
            await application.run()
        except RefusedError as error:
            refusal = error
        else:
            return
        self._refused += 1
        if self._lives[habits.name].number == number:
            assert self._may_be_refused(habits), f"{habits.name} was shut out for nothing: {refusal}"
            self._start(habits)

    def _may_be_refused(self, habits: Habits) -> bool:
        """Whether it took too long, or a request of a zombie or of long ago shut it out, for all that is known.

        As in Kafka, coordinators do not write down which epoch a producer had before it asked for another one: when the
        answer is lost, and with it the coordinator, it is taken for somebody else.
        """
        return (
            habits.timeout_ms < _LONG_MS
            or (habits.restart_share > 0 and self._coordinator_losses > 0)
            or any(zombie.process.name.startswith(habits.name) for zombie in self._zombies)
            or self._was_init_repeated
            or (habits.is_version_2 and self._network.late > 0)
        )

    # Troubles

    async def _trouble(self) -> None:
        ends_s = self._loop.time() + self._plan.trouble_s
        while self._loop.time() < ends_s:
            await asyncio.sleep(self._random.expovariate(1 / self._plan.pause_s))
            if not self._broker.is_up:
                await self._restart_broker()
                continue
            if self._plan.troubles:
                await self._make(self._random.choice(self._plan.troubles))

    async def _make(self, trouble: str) -> None:
        habits = self._random.choice(self._habits)
        life = self._lives[habits.name]
        match trouble:
            case "kill":
                self._broker.kill()
            case "kill in write":
                self._broker.kill_while_it_writes(self._random.randrange(40), self._random.choice((0.0, 0.5, 1.0)))
            case "stop":
                await self._broker.stop()
            case "replace" if self._random.random() < 0.5:
                self._to_die_at_end.add(habits.name)
            case "replace":
                self._replace(habits, life.number)
            case "zombie" if habits.changes_id:
                return
            case "zombie" if not life.task.done() and len(self._zombies) < _ZOMBIES_MAX:
                life.process.is_paused = True
                self._zombies.append(life)
                self._start(habits)
            case "zombie" if self._zombies:
                self._random.choice(self._zombies).process.is_paused = False
            case "reload":
                self._coordinator_losses += 1
                self._broker.reload_coordinators()
            case "repeat" if self._sent:
                for _ in range(self._random.randint(1, 5)):
                    self._repeated += 1
                    ends = [question for question in self._sent if question.api is END_TXN]
                    question = self._random.choice(ends if ends and self._random.random() < 0.5 else self._sent)
                    self._was_init_repeated |= question.api is INIT_PRODUCER_ID
                    self._loop.spawn(self._loop.process("ghost"), self._repeat(question))

    async def _repeat(self, question: Question) -> None:
        """Send again what was sent some time ago, as a network might that held it up."""
        try:
            connection = await self._network.connect()
            connection.send(frame(question.api, question.request, question.version))
            await connection.receive(1.0)
        except (ConnectionError, TimeoutError):
            return


def run_seed(seed: int, base: Path) -> Outcome:
    """Run it; a failure names the seed."""
    try:
        return TransactionRun(seed, base).run()
    except BaseException as error:
        error.add_note(f"TRANSACTION_SEED={seed}: CONTRIBUTING.md says how to run it again")
        raise
    finally:
        shutil.rmtree(base, ignore_errors=True)
