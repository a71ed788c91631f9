"""Real clients copy in transactions, some of them aborted, and lose copiers on the way: each record is copied once."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from copiers.report import BATCH_RECORDS, SESSION_MS
from copy_scenario import DEADLINE_S, PARTITIONS, SOURCE, TARGET, CopyScenario, read
from tidelog.bench.brokers import kafka_jars
from tidelog.testing import Broker

RECORDS = 60
WORDS_WRITTEN = 2_000
COPIER_DEADLINE_S = 120.0
SETTINGS = {
    # Short sessions, so that the death of a copier is noticed within a test.
    "group.min.session.timeout.ms": SESSION_MS,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as running:
        for topic in (SOURCE, TARGET):
            running.create_topic(topic, PARTITIONS)
        yield running


@pytest.mark.parametrize("family", ["aiokafka", "confluent-kafka", "kafka-python"])
def test_each_record_is_copied_once(family: str, broker: Broker, tmp_path: Path) -> None:
    # See the copier on aiokafka for why it needs them.
    shares = ([0, 1], [2, 3]) if family == "aiokafka" else (None, None)
    with CopyScenario(broker.bootstrap, family, tmp_path) as scenario:
        copy_with_one_killed_and_one_fenced(scenario, *shares)


def copy_with_one_killed_and_one_fenced(
    scenario: CopyScenario, one_share: list[int] | None = None, other_share: list[int] | None = None
) -> None:
    scenario.write(RECORDS)
    scenario.start("one", "id of one", one_share)
    scenario.start("other", "id of other", other_share)
    scenario.wait_until_assigned("one", "other")
    for name in ("one", "other"):
        scenario.lead(name, "stall")
    scenario.write(RECORDS)
    scenario.wait_until_said("stalled", "one", "other")

    scenario.kill("one")
    scenario.start("one again", "id of one", one_share)
    scenario.start("other again", "id of other", other_share)
    scenario.lead("other", "go")
    scenario.wait_until_said("fenced", "other")
    scenario.leave("other")

    scenario.write(RECORDS)
    scenario.wait_until_assigned("one again", "other again")
    scenario.wait_until_copied()
    for name in ("one again", "other again"):
        scenario.leave(name)
    scenario.check()


@pytest.mark.compat
@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_java_copies_each_record_once(version: str, broker: Broker, java_jars: Path, tmp_path: Path) -> None:
    with CopyScenario(broker.bootstrap, "java", tmp_path, java_jars=java_jars / f"lib-{version}") as scenario:
        copy_with_one_killed_and_one_fenced(scenario)


@pytest.mark.compat
@pytest.mark.parametrize(("version", "epochs_a_transaction"), [("3.9.2", 0), ("4.3.1", 1)])
def test_transactions_of_new_clients_have_an_epoch_each(
    version: str, epochs_a_transaction: int, broker: Broker, java_jars: Path, tmp_path: Path
) -> None:
    """Clients that find `transaction.version=2` finalized let every end of a transaction raise the epoch."""
    with CopyScenario(broker.bootstrap, "java", tmp_path, java_jars=java_jars / f"lib-{version}") as scenario:
        scenario.write(RECORDS)
        scenario.start("one", "id of one")
        scenario.wait_until_copied()
        scenario.leave("one")
        transactions = scenario.count("committed", "one") + scenario.count("aborted", "one")
    assert transactions >= RECORDS * PARTITIONS / BATCH_RECORDS
    described = java(
        f"{kafka_jars()}/*",
        "org.apache.kafka.tools.TransactionsCommand",
        *("--bootstrap-server", broker.bootstrap, "describe", "--transactional-id", "id of one"),
    )
    titles, values = (re.split(r"\s{2,}|\t", line.strip()) for line in described.splitlines()[:2])
    row = dict(zip(titles, values, strict=False))
    assert row["TransactionState"].startswith("Complete"), described
    assert int(row["ProducerEpoch"]) == epochs_a_transaction * transactions, described
    features = java(
        f"{kafka_jars()}/*",
        "org.apache.kafka.tools.FeatureCommand",
        *("--bootstrap-server", broker.bootstrap, "describe"),
    )
    assert re.search(r"transaction\.version\s.*FinalizedVersionLevel: 2\b", features), features


@pytest.mark.compat
def test_kafkas_own_copier_with_random_aborts(broker: Broker, tmp_path: Path) -> None:
    records = 1_000
    with CopyScenario(broker.bootstrap, "java", tmp_path) as scenario:
        scenario.write(records)
    copiers = [
        subprocess.Popen(
            [
                *("java", "-Xmx128m", "-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.TransactionalMessageCopier"),
                *("--broker-list", broker.bootstrap, "--consumer-group", "copiers", "--use-group-metadata"),
                *("--input-topic", SOURCE, "--input-partition", str(partition), "--output-topic", TARGET),
                *("--transactional-id", f"copier of {partition}", "--transaction-size", "50"),
                "--enable-random-aborts",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for partition in range(PARTITIONS)
    ]
    try:
        assert [copier.wait(COPIER_DEADLINE_S) for copier in copiers] == [0] * PARTITIONS
    finally:
        for copier in copiers:
            copier.kill()
            copier.wait()
    expected = [b"%d" % number for number in range(records)]
    committed = read(broker.bootstrap, "read_committed")
    assert [[value for _, value in rows] for rows in committed.values()] == [expected] * PARTITIONS
    everything = read(broker.bootstrap, "read_uncommitted")
    # Of eighty transactions, some were aborted.
    assert sum(map(len, everything.values())) > records * PARTITIONS


@pytest.mark.compat
def test_kafka_streams_counts_each_word_once(broker: Broker, java_jars: Path, tmp_path: Path) -> None:
    words = 20
    expected = Counter(b"word %d" % (number % words) for number in range(WORDS_WRITTEN))
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def write(numbers: range) -> None:
        for number in numbers:
            producer.produce(SOURCE, b"word %d" % (number % words), partition=number % PARTITIONS)
        assert producer.flush(DEADLINE_S) == 0

    def counts(isolation: str) -> dict[bytes | None, list[int]]:
        found: dict[bytes | None, list[int]] = {}
        for rows in read(broker.bootstrap, isolation).values():
            for word, count in rows:
                assert count is not None
                found.setdefault(word, []).append(int(count))
        return found

    def wait_for(isolation: str, count: int) -> None:
        deadline = time.monotonic() + COPIER_DEADLINE_S
        while sum(map(len, counts(isolation).values())) < count:
            assert time.monotonic() < deadline, f"{counts(isolation)}; logs in {tmp_path}"

    half = WORDS_WRITTEN // 2
    write(range(half))
    with streams(broker, java_jars, tmp_path / "first") as killed:
        wait_for("read_committed", half)
        write(range(half, WORDS_WRITTEN))
        # Then it is amid a transaction, which it can't end.
        wait_for("read_uncommitted", half + 1)
        killed.kill()
    with streams(broker, java_jars, tmp_path / "second"):
        wait_for("read_committed", WORDS_WRITTEN)
    found = counts("read_committed")
    # A word that was counted twice would have a count too many; one that was lost, one too few.
    assert found == {word: list(range(1, times + 1)) for word, times in expected.items()}
    assert sum(map(len, counts("read_uncommitted").values())) > WORDS_WRITTEN


@contextmanager
def streams(broker: Broker, java_jars: Path, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    directory.mkdir()
    program = Path(__file__).parent / "java" / "StreamsCount.java"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("java", "-Xmx256m", "-cp", f"{java_jars}/streams/*", str(program)),
                *(broker.bootstrap, SOURCE, TARGET, str(directory / "state")),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(DEADLINE_S)
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def java(class_path: str, *arguments: str) -> str:
    done = subprocess.run(
        ["java", "-Xmx256m", "-cp", class_path, *arguments], capture_output=True, text=True, timeout=COPIER_DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
