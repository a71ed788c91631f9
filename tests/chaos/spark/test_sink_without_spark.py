"""The sink's exactly-once under kill -9 of workers, drivers and the broker, at every request of its protocol.

Spark is played (`played_spark`), everything else is real: the sink's code in processes of their own, and a broker. A
seed that failed is played alone with SINK_SEEDS=17 (or 3-9, or several with commas).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from planted_mistakes import MISTAKES
from played_process import Action, Done, End, Failed, Fault, Moment, Write
from played_spark import Gone, PlayedProcess, PlayedQuery, parse_seeds, sink_settings, topic_of
from tidelog import Admin, Consumer, NewTopic, TopicPartition
from tidelog.spark.sink_identity import TaskReport

PARTITIONS = 2
# Every fourth of the first 315: all seven kinds of a first fault, and all 45 steps of the protocol that it can hit.
SEEDS = list(parse_seeds(os.environ["SINK_SEEDS"])) if "SINK_SEEDS" in os.environ else list(range(0, 315, 4))
AT_ONCE = 3  # queries that are played beside each other, against the one broker
READ_WAIT_S = 60.0


class Guardian:
    """Starts the broker again whenever it was killed, and says where it is."""

    def __init__(self, broker: Any, pid_file: Path) -> None:
        self.broker = broker
        self.pid_file = pid_file
        self.kills = 0
        self.failure: Exception | None = None
        self._is_ending = threading.Event()
        self._note_pid()
        self._thread = threading.Thread(target=self._watch, name="guardian", daemon=True)
        self._thread.start()

    def _note_pid(self) -> None:
        self.pid_file.write_text(str(self.broker.pid))

    def _watch(self) -> None:
        while not self._is_ending.wait(0.01):
            if not self.broker.is_running:
                self.kills += 1
                try:
                    self.broker.kill()
                    self.broker.start()
                    self._note_pid()
                except Exception as error:  # noqa: BLE001  # told by whoever waits for the queries
                    self.failure = error
                    return

    def close(self) -> None:
        self._is_ending.set()
        self._thread.join()


@pytest.fixture
def guardian(serve: Callable[..., Any], tmp_path: Path) -> Iterator[Guardian]:
    broker = serve(
        {
            "transaction.two.phase.commit.enable": "true",
            "unstable.api.versions.enable": "true",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        }
    )
    guardian = Guardian(broker, tmp_path / "broker.pid")
    yield guardian
    guardian.close()
    assert guardian.failure is None


def create_topics(guardian: Guardian, seeds: Sequence[int]) -> None:
    with Admin(bootstrap_servers=guardian.broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic_of(seed), PARTITIONS) for seed in seeds]).raise_for_errors()


def play(guardian: Guardian, seeds: Sequence[int], **how: Any) -> list[PlayedQuery]:
    """Play all seeds, some at once; the queries, played to their ends."""
    create_topics(guardian, seeds)
    queries = [PlayedQuery(seed, guardian.broker.bootstrap, guardian.pid_file, **how) for seed in seeds]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for query, outcome in [(query, pool.submit(query.play)) for query in queries]:
                _wait_for(guardian, query, outcome)
        except BaseException:
            # The pool's end waits for what runs, and without a broker that would take hours.
            pool.shutdown(wait=False, cancel_futures=True)
            for query in queries:
                query.give_up()
            raise
    return queries


def _wait_for(guardian: Guardian, query: PlayedQuery, outcome: Future[None]) -> None:
    while True:
        if guardian.failure is not None:
            raise AssertionError("the broker did not come back") from guardian.failure
        try:
            return outcome.result(timeout=1.0)
        except TimeoutError:
            if outcome.done():
                raise
        except AssertionError as error:
            error.add_note(f"seed {query.seed}: {query.journal.lines}")
            raise


def committed_values(guardian: Guardian, seeds: Sequence[int]) -> Counter[str]:
    """All that readers of committed records see."""
    found: Counter[str] = Counter()
    partitions = [TopicPartition(topic_of(seed), number) for seed in seeds for number in range(PARTITIONS)]
    with Consumer(
        bootstrap_servers=guardian.broker.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        deadline_s = time.monotonic() + READ_WAIT_S
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            assert time.monotonic() < deadline_s, "reading does not end"
            found.update(record.value.decode() for record in consumer.poll(0.1))
    return found


def open_transactions(guardian: Guardian, seeds: Sequence[int]) -> set[int]:
    """The seeds of which a transaction is open."""
    with Admin(bootstrap_servers=guardian.broker.bootstrap) as admin:
        listed = admin.list_transactions(states=["Ongoing", "PrepareCommit", "PrepareAbort"])
    ids = [listing.transactional_id for listing in listed]
    return {seed for seed in seeds if any(f"-query-{seed}-" in transactional_id for transactional_id in ids)}


def complaints(guardian: Guardian, queries: Sequence[PlayedQuery], patience_s: float = 60.0) -> list[str]:
    """What is wrong with each query's output."""
    seeds = [query.seed for query in queries]
    deadline_s = time.monotonic() + patience_s
    while open_transactions(guardian, seeds) and time.monotonic() < deadline_s:
        threading.Event().wait(0.05)  # markers of the last commits are being written
    left_open = open_transactions(guardian, seeds)
    found = committed_values(guardian, seeds)
    wrong = []
    for query in queries:
        expected = Counter(query.expected())
        mine = Counter({value: count for value, count in found.items() if value.startswith(f"{query.seed}/")})
        lost, extra = sorted((expected - mine).elements()), sorted((mine - expected).elements())
        if lost or extra or query.seed in left_open or query.failure:
            story = "\n    ".join(query.journal.lines)
            is_open = query.seed in left_open
            wrong.append(
                f"seed {query.seed}: lost {lost}, twice {extra}, left open: {is_open} {query.failure}\n    {story}"
            )
    return wrong


@pytest.mark.timeout(600)
@pytest.mark.parametrize("two_phase", [False, True], ids=["plain transactions", "two-phase commit"])
def test_every_row_is_committed_once_whatever_is_killed(guardian: Guardian, two_phase: bool) -> None:
    seeds = [seed for seed in SEEDS if (seed % 9 == 8) is two_phase]
    queries = play(guardian, seeds, two_phase=two_phase)
    kill_points = sum(query.journal.kill_points for query in queries) + guardian.kills
    print(f"{len(queries)} queries, {kill_points} kill points, {guardian.kills} of them of the broker")
    wrong = complaints(guardian, queries)
    assert not wrong, "\n".join(wrong)
    assert kill_points > len(queries) // 2 or len(queries) < 20, "the faults don't strike"


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_thousand_seeds(guardian: Guardian) -> None:
    queries = play(guardian, range(1_000, 3_000))
    wrong = complaints(guardian, queries)
    assert not wrong, "\n".join(wrong)


class Batch:
    """Batches of a query, by its own processes; they all have the same rows."""

    ROWS = (["a", "b"], ["c"], ["d", "e"])

    def __init__(self, guardian: Guardian, timeout_ms: int) -> None:
        self._guardian = guardian
        self._settings = sink_settings(
            guardian.broker.bootstrap, topic_of(0), kafka={"transaction.timeout.ms": str(timeout_ms)}
        )
        create_topics(guardian, [0])

    def write(self, run: str, batch: int = 0) -> list[TaskReport | None]:
        properties = {"sql.streaming.queryId": "query-0", "streaming.sql.batchId": str(batch), "spark.jobGroup.id": run}
        worker = PlayedProcess(self._guardian.pid_file, None)
        reports = []
        for partition, values in enumerate(self.ROWS):
            worker.send(Write(self._settings, properties, partition, values, False, None))
            answer = worker.answer()
            assert isinstance(answer, Done), answer
            reports.append(answer.result)
        worker.kill()
        return reports

    def commit(self, reports: Sequence[TaskReport | None], fault: Fault | None = None) -> Done | Failed | None:
        """None: the process was killed."""
        committer = PlayedProcess(self._guardian.pid_file, None)
        try:
            committer.send(End(self._settings, reports, True, fault))
            return committer.answer()
        except Gone:
            return None
        finally:
            committer.kill()

    def wait_for_all_ends(self) -> None:
        deadline_s = time.monotonic() + 30
        while open_transactions(self._guardian, [0]):
            assert time.monotonic() < deadline_s, "transactions stay open"
            threading.Event().wait(0.05)


TIMEOUT_MS = 2_000
# The first EndTxn is the decision's, and those of the three tasks follow at once.
BEFORE_THE_SECOND_TASK = Fault(Action.KILL, 3, Moment.BEFORE, "EndTxnRequest")
AFTER_THE_DECISION = Fault(Action.KILL, 1, Moment.ANSWERED, "EndTxnRequest")


@pytest.mark.parametrize("fault", [BEFORE_THE_SECOND_TASK, AFTER_THE_DECISION], ids=["one has landed", "none has"])
def test_what_timed_out_after_the_decision_is_written_again_and_nothing_else(guardian: Guardian, fault: Fault) -> None:
    batch = Batch(guardian, TIMEOUT_MS)
    assert batch.commit(batch.write("first run"), fault) is None
    batch.wait_for_all_ends()
    before = committed_values(guardian, [0])
    again = batch.write("second run")
    assert [report.is_skipped for report in again if report is not None].count(True) == (1 if before else 0)
    assert isinstance(batch.commit(again), Done)
    batch.wait_for_all_ends()
    assert committed_values(guardian, [0]) == Counter("abcde")
    assert all(report.is_skipped for report in batch.write("third run") if report is not None)


def test_a_batch_that_takes_longer_than_transactions_may_be_open_is_not_decided_for(guardian: Guardian) -> None:
    batch = Batch(guardian, TIMEOUT_MS)
    reports = batch.write("first run")
    batch.wait_for_all_ends()
    answer = batch.commit(reports)
    assert isinstance(answer, Failed)
    assert "took longer than its transactions may stay open" in answer.error
    assert isinstance(batch.commit(batch.write("second run")), Done)
    batch.wait_for_all_ends()
    assert committed_values(guardian, [0]) == Counter("abcde")


def test_a_decision_that_was_not_carried_out_is_by_whoever_decides_next(guardian: Guardian) -> None:
    batch = Batch(guardian, 600_000)
    assert batch.commit(batch.write("first run"), AFTER_THE_DECISION) is None
    assert committed_values(guardian, [0]) == Counter()
    assert isinstance(batch.commit(batch.write("second run", batch=1)), Done)
    batch.wait_for_all_ends()
    assert committed_values(guardian, [0]) == Counter("abcde" * 2)


# Seeds that show each mistake nearly always; some need a moment that a busy machine may miss.
SHOWN_BY = {
    "use_ids_again": [0, 1, 3],
    "commit_undecided": [2, 5, 10],
    "decide_again": [2, 5, 10],
    "abort_all": [42, 47, 49, 52],
    "abort_everybody": [2, 4, 40],
    "leave_orphans": [0, 3],
    "forget_winners": [98, 140, 173, 189],
}
MORE_SEEDS = 12
TRIES = 8


def test_every_mistake_has_its_seeds() -> None:
    assert SHOWN_BY.keys() == MISTAKES.keys()


def seeds_to_try(mistake: str) -> Iterator[list[int]]:
    """Those that show it, then others."""
    yield SHOWN_BY[mistake]
    others = [seed for seed in range(TRIES * MORE_SEEDS) if seed not in SHOWN_BY[mistake]]
    for first in range(0, len(others), MORE_SEEDS):
        yield others[first : first + MORE_SEEDS]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(guardian: Guardian, mistake: str) -> None:
    assert any(
        complaints(guardian, play(guardian, seeds, mistake=mistake), patience_s=2.0) for seeds in seeds_to_try(mistake)
    )
