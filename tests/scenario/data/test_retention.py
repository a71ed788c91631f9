"""Old segments go by time and size, seen by clients, with a clock that the test turns: a day takes seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tidelog.client.admin import Admin, NewTopic, OffsetSpec
from tidelog.client.errors import BrokerError
from tidelog.client.types import TopicPartition as Partition
from tidelog.log import PartitionLog
from tidelog.log.retention import delete_expired
from tidelog.protocol import ErrorCode
from tidelog.protocol.config_values import ConfigResource, ResourceType
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.testing import Broker, VirtualClock

if TYPE_CHECKING:
    from tests.scenario.data.conftest import RawClient

WAIT_S = 30.0
HOUR_MS = 3_600_000
ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")
WaitUntil = Callable[[Callable[[], bool], str], None]
MakeBatch = Callable[..., bytearray]
Connect = Callable[[Broker], "RawClient"]


class Retained:
    """A broker whose time the test turns, and what its clients see of a topic."""

    def __init__(self, broker: Broker, clock: VirtualClock, wait_until: WaitUntil, checks: Sequence[int]) -> None:
        self._checks = checks
        self.broker = broker
        self.clock = clock
        self.wait_until = wait_until
        self._settings: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap, "log_level": 2}
        self._producer = Producer(self._settings)

    def create(self, topic: str, **configs: str) -> None:
        """A topic that goes by the broker's clock."""
        configs = {"message.timestamp.type": "LogAppendTime"} | configs
        self.broker.create_topic(topic, configs={name.replace("_", "."): value for name, value in configs.items()})

    def produce(self, topic: str, value: bytes = b"value") -> None:
        errors: list[KafkaError | None] = []
        self._producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
        assert self._producer.flush(WAIT_S) == 0
        assert errors == [None]

    def alter(self, resource: ConfigResource, setting: str, value: str | None) -> None:
        with Admin(bootstrap_servers=self.broker.bootstrap) as admin:
            admin.incremental_alter_configs({resource: {setting: value}}).raise_for_errors()

    def offsets(self, topic: str) -> tuple[int, int]:
        """Where the partition starts and ends, as its clients see it."""
        with Admin(bootstrap_servers=self.broker.bootstrap) as admin:
            key = Partition(topic, 0)
            return (
                admin.list_offsets({key: OffsetSpec.EARLIEST})[key].offset,
                admin.list_offsets({key: OffsetSpec.LATEST})[key].offset,
            )

    def starts_at(self, topic: str, offset: int) -> None:
        self.wait_until(lambda: self.offsets(topic)[0] == offset, f"{topic} starts at {offset}")

    def check(self) -> None:
        """Let the broker look for old segments until it has."""
        counted = len(self._checks)
        self.clock.advance(minutes=5)
        self.wait_until(lambda: len(self._checks) > counted, "the broker looks for old segments")


@pytest.fixture
def start(
    start_broker: Callable[..., Broker], wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Retained]:
    """Starts the test's broker with settings of its choice."""
    checks: list[int] = []

    async def noted(logs: Iterable[PartitionLog], now_ms: int) -> None:
        await delete_expired(logs, now_ms)
        checks.append(now_ms)

    def start(**settings: str) -> Retained:
        clock = VirtualClock()
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return Retained(start_broker(clock, settings=named), clock, wait_until, checks)

    monkeypatch.setattr("tidelog.log.housekeeping.delete_expired", noted)
    return start


@pytest.fixture
def retained(start: Callable[..., Retained]) -> Retained:
    return start()


def test_a_day_passes_and_the_last_hours_are_kept(retained: Retained) -> None:
    """Behaviour 41: a record an hour, six hours of retention, segments of two hours."""
    retained.create("hourly", retention_ms=str(6 * HOUR_MS), segment_ms=str(2 * HOUR_MS - 1))
    for hour in range(24):
        retained.produce("hourly", b"hour %d" % hour)
        retained.clock.advance(minutes=25)
        for _ in range(7):
            retained.check()
        start, end = retained.offsets("hourly")
        assert end == hour + 1
        # What is younger than six hours is there; what goes goes by segments of two records.
        assert max(0, hour - 7) <= start <= max(0, hour - 5), (hour, start)
    assert retained.offsets("hourly")[0] >= 16


def test_an_expired_active_segment_goes_too_and_the_offsets_go_on(retained: Retained) -> None:
    retained.create("idle", retention_ms=str(HOUR_MS))
    for _ in range(3):
        retained.produce("idle")
    retained.clock.advance(hours=1)
    retained.check()
    assert retained.offsets("idle") == (3, 3)
    retained.produce("idle")
    assert retained.offsets("idle") == (3, 4)
    directory = retained.broker.data_dir / "broker-1" / "idle-0"

    def files_a_minute_later() -> list[str]:
        retained.clock.advance(minutes=1)
        return [path.name for path in sorted(directory.glob("*.log*"))]

    retained.wait_until(
        lambda: files_a_minute_later() == ["00000000000000000003.log"],
        "deleted files are removed after file.delete.delay.ms",
    )


def test_size_counts_in_whole_segments(retained: Retained) -> None:
    retained.create("sized", retention_bytes="2500", segment_bytes="1200")
    for _ in range(8):
        retained.produce("sized", bytes(1_000))
    retained.check()
    start, end = retained.offsets("sized")
    assert (start, end) == (5, 8), "three segments of about 1,070 bytes are left: two would be less than 2,500 bytes"


def test_settings_of_topic_and_broker_take_effect_while_it_runs(start: Callable[..., Retained]) -> None:
    retained = start(log_retention_minutes="60", log_retention_hours="1000")
    retained.create("altered", segment_ms="1000")
    topic = ConfigResource(ResourceType.TOPIC, "altered")

    def grow() -> None:
        retained.produce("altered")
        retained.clock.advance(seconds=2)

    def expect(start: int) -> None:
        retained.check()
        assert retained.offsets("altered")[0] == start

    grow()
    retained.clock.advance(minutes=56)
    expect(1)  # by log.retention.minutes, which outranks the hours
    grow()
    retained.alter(ALL_BROKERS, "log.retention.ms", str(10 * HOUR_MS))
    retained.clock.advance(hours=2)
    expect(1)
    retained.alter(topic, "retention.ms", "-1")
    retained.clock.advance(hours=9)
    expect(1)
    retained.alter(topic, "retention.ms", None)
    expect(2)
    grow()
    grow()
    retained.alter(topic, "retention.bytes", "1")
    expect(3)
    retained.alter(topic, "cleanup.policy", "compact")
    retained.clock.advance(days=1)
    expect(3)
    retained.alter(topic, "cleanup.policy", "compact,delete")
    expect(4)


def test_what_a_consumer_sees(retained: Retained) -> None:
    """Its position lies below the start: auto.offset.reset decides, as with Kafka."""
    retained.create("read", retention_ms=str(HOUR_MS), segment_ms="1000")
    for number in range(6):
        retained.produce("read", b"%d" % number)
        retained.clock.advance(minutes=20)
    retained.check()
    retained.starts_at("read", 4)
    for reset, offset, seen in (
        ("earliest", 1, b"4"),
        ("error", 1, KafkaError._AUTO_OFFSET_RESET),
        ("error", OFFSET_BEGINNING, b"4"),
    ):
        consumer = Consumer(
            {
                "bootstrap.servers": retained.broker.bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": reset,
            }
        )
        consumer.assign([TopicPartition("read", 0, offset)])
        message = consumer.poll(WAIT_S)
        assert message is not None
        error = message.error()
        assert (message.value() if error is None else error.code()) == seen
        consumer.close()


def test_a_fetch_below_the_start_is_out_of_range_at_once(retained: Retained, connect: Connect) -> None:
    retained.create("gone", retention_ms=str(HOUR_MS))
    retained.produce("gone")
    retained.clock.advance(hours=2)
    retained.check()
    raw = connect(retained.broker)
    assert raw.fetch("gone", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    data = raw.fetch("gone", 1)
    assert (data.error_code, data.log_start_offset, data.high_watermark) == (ErrorCode.NONE, 1, 1)


def test_a_slow_reader_gets_the_segment_that_is_deleted_meanwhile(
    retained: Retained, connect: Connect, batch: MakeBatch
) -> None:
    """Behaviour 41: it asked before, the files are gone, and what it reads is whole."""
    retained.create("slow", retention_ms=str(HOUR_MS), file_delete_delay_ms="0")
    raw = connect(retained.broker)
    sent = [batch(bytes([number]) * 900_000) for number in range(20)]
    for each in sent:
        assert raw.produce("slow", each).error_code == ErrorCode.NONE
    fetch = FetchRequest(
        max_bytes=2**31 - 1,
        topics=[FetchTopic(topic="slow", partitions=[FetchPartition(partition_max_bytes=2**31 - 1)])],
    )
    correlation_id = raw.send(FETCH, 12, fetch)
    log = retained.broker.server.services.logs.get("slow", 0)
    assert log is not None
    # The broker has begun to answer once something is there to be read; nobody reads it yet.
    raw.socket.recv(1, 0x02)
    retained.clock.advance(hours=2)
    retained.check()

    def files_a_second_later() -> list[Path]:
        retained.clock.advance(seconds=1)
        return [*log.directory.glob(f"{0:020d}.log*")]

    retained.wait_until(lambda: not files_a_second_later(), "the files are removed")
    answer = raw.receive(FETCH, 12, correlation_id, FetchResponse).responses[0].partitions[0]
    assert isinstance(answer.records, memoryview)
    assert len(answer.records) == sum(map(len, sent))
    assert bytes(answer.records[-100:]) == bytes(sent[-1][-100:])


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_the_start_of_the_log_survives(retained: Retained, end: str) -> None:
    retained.create("kept", retention_ms=str(HOUR_MS), segment_ms="1000")
    for _ in range(4):
        retained.produce("kept")
        retained.clock.advance(minutes=25)
    retained.check()
    log = retained.broker.server.services.logs.get("kept", 0)
    assert log is not None
    retained.clock.advance(seconds=1)
    retained.wait_until(lambda: not log.has_dropped_segments, "the files are renamed")
    offsets = retained.offsets("kept")
    assert offsets == (2, 4)
    getattr(retained.broker, end)()
    retained.broker.start()
    assert retained.offsets("kept") == offsets


def test_the_first_look_comes_soon_after_the_start(start: Callable[..., Retained]) -> None:
    """A broker that was down has much to let go; it does not wait for log.retention.check.interval.ms."""
    retained = start(log_initial_task_delay_ms="30000", log_retention_check_interval_ms=str(100 * HOUR_MS))
    retained.create("late", retention_ms=str(HOUR_MS))
    retained.produce("late")
    retained.broker.stop()
    retained.clock.advance(days=2)
    retained.broker.start()
    assert retained.offsets("late") == (0, 1)
    retained.clock.advance(seconds=30)
    retained.starts_at("late", 1)


def test_hundreds_of_partitions_expire_at_once(retained: Retained, connect: Connect, batch: MakeBatch) -> None:
    """Each begins a new segment and drops the old one; the broker goes on answering."""
    count = 300
    retained.broker.create_topic("many", count, {"retention.ms": str(HOUR_MS)})
    raw = connect(retained.broker)
    one = batch(b"value", timestamp_ms=retained.clock.now_ms())
    response = raw.produce_many({("many", number): one for number in range(count)})
    assert {row.error_code for row in response.responses[0].partition_responses} == {ErrorCode.NONE}
    logs = retained.broker.server.services.logs
    retained.clock.advance(hours=2)
    longest_s = 0.0
    deadline_s = time.monotonic() + WAIT_S
    while not all(log.log_start_offset == 1 and not log.has_dropped_segments for log in logs.logs()):
        assert time.monotonic() < deadline_s
        asked_s = time.monotonic()
        assert raw.list_offset("many", -1).offset == 1
        longest_s = max(longest_s, time.monotonic() - asked_s)
        retained.clock.advance(seconds=1)
    assert longest_s < 5


def test_lags_that_contradict_each_other_are_refused(retained: Retained) -> None:
    with Admin(bootstrap_servers=retained.broker.bootstrap) as admin:
        configs = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}
        error = admin.create_topics([NewTopic("lags", 1, 1, configs)]).errors["lags"]
        assert isinstance(error, BrokerError)
        assert error.code is ErrorCode.INVALID_CONFIG
        assert "min.compaction.lag.ms is 10" in str(error)
        configs["max.compaction.lag.ms"] = "10"
        admin.create_topics([NewTopic("lags", 1, 1, configs)]).raise_for_errors()
    with pytest.raises(BrokerError, match="INVALID_CONFIG"):
        retained.alter(ConfigResource(ResourceType.TOPIC, "lags"), "max.compaction.lag.ms", "9")
