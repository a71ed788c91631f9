"""Settings of consumers: what is refused when the consumer is made, and what the values mean."""

from __future__ import annotations

import json

import pytest

from tidelog import Consumer
from tidelog.client.consumer.settings import CONSUMER_SETTINGS, ConsumerOptions, ConsumerSettings, read_reset
from tidelog.client.consumer.subscription import TO_BEGINNING, TO_END
from tidelog.client.errors import ConfigError
from tidelog.serialization import StringDeserializer


def test_options_and_table_are_the_same() -> None:
    assert {name.replace("_", ".") for name in ConsumerOptions.__annotations__} == set(CONSUMER_SETTINGS.rows)


@pytest.mark.parametrize("bad", ["smallest", "EARLIEST", "by_duration:", "by_duration:1h", "by_duration:PT", "", "-1"])
def test_other_resets_are_refused_when_the_consumer_is_made(bad: str) -> None:
    with pytest.raises(ConfigError, match="expected earliest, latest, none or by_duration"):
        Consumer(auto_offset_reset=bad)


@pytest.mark.parametrize(
    ("text", "back_ms"),
    [
        ("PT1H", 3_600_000),
        ("P7D", 7 * 86_400_000),
        ("P1DT2H3M4.5S", 86_400_000 + 7_200_000 + 180_000 + 4_500),
        ("PT0S", 0),
        ("pt5m", 300_000),
    ],
)
def test_durations(text: str, back_ms: int) -> None:
    reset = read_reset(f"by_duration:{text}")
    assert reset is not None
    assert reset.back_ms == back_ms


def test_named_resets() -> None:
    assert read_reset("earliest") is TO_BEGINNING
    assert read_reset("latest") is TO_END
    assert read_reset("none") is None


@pytest.mark.parametrize("good", [lambda topic, value, headers: value, lambda *given: given, StringDeserializer(), max])
def test_deserializers_of_three_arguments_are_taken(good: object) -> None:
    assert ConsumerSettings.read({"key.deserializer": good}, {}).key_deserializer is good


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isolation_level": "serializable"}, "read_uncommitted, read_committed"),
        ({"max_poll_records": 0}, "expected 1 or more"),
        ({"value_deserializer": "json"}, "can be called"),
        ({"value_deserializer": json.loads}, r"\(topic, value, headers\).*wrap it: .*: loads\(value\)"),
        ({"key_deserializer": lambda value: value}, r"wrap it: lambda topic, value, headers: your_function\(value\)"),
        ({"group_protocol": "share"}, "classic, consumer"),
        ({"group_instance_id": "x"}, "needs a group"),
        ({"enable_auto_commit": True}, "needs a group"),
        ({"group_id": "g", "heartbeat_interval_ms": 50_000}, "must be below session.timeout.ms"),
        ({"bootstrap_servers": 9092}, "=9092: expected a string of HOST:PORT, as '127.0.0.1:9092', or a list"),
        ({"bootstrap_servers": ["a:1", 9092]}, "expected a string of HOST:PORT"),
        ({"bootstrap_servers": ("127.0.0.1", 9092)}, "expected a string of HOST:PORT"),
        ({"bootstrap_servers": b"127.0.0.1:9092"}, "expected a string of HOST:PORT"),
        ({"bootstrap_servers": None}, "expected a value"),
        ({"autooffset_reset": "latest"}, "did you mean 'auto_offset_reset'"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConsumerSettings.read(None, options)


def test_defaults_are_kafkas() -> None:
    settings = ConsumerSettings.read(None, {})
    assert (settings.max_poll_records, settings.fetch_max_wait_ms, settings.fetch_min_bytes) == (500, 500, 1)
    assert (settings.fetch_max_bytes, settings.max_partition_fetch_bytes) == (52_428_800, 1_048_576)
    assert (settings.queued_max_bytes, settings.reset, settings.group) == (67_108_864, TO_END, None)
    group = ConsumerSettings.read({"group.id": "g"}, {}).group
    assert group is not None
    assert (group.enable_auto_commit, group.auto_commit_interval_ms, group.max_poll_interval_ms) == (True, 5000, 300000)
    assert (group.session_timeout_ms, group.heartbeat_interval_ms) == (45_000, 3_000)


def test_assignors_by_name_in_one_text() -> None:
    group = ConsumerSettings.read({"group.id": "g", "partition.assignment.strategy": "sticky, range"}, {}).group
    assert group is not None
    assert group.partition_assignment_strategy == ("sticky", "range")
