"""The rows: Kafka's names, types, defaults and checks, and the ranks between settings of one meaning."""

from __future__ import annotations

import dataclasses

import pytest

from tidelog.common.settings import Setting, SettingError, Settings, SettingScope, SettingType
from tidelog.log.config import LogConfig
from tidelog.server.settings_load import environment_name
from tidelog.server.settings_table import TABLE

TOPIC, BROKER = SettingScope.TOPIC, SettingScope.BROKER

TOPIC_SETTINGS_OF_KAFKA = {
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
}


def test_topic_settings_are_those_of_kafka_and_one_of_ours() -> None:
    assert {row.name for row in TABLE.rows(TOPIC)} == TOPIC_SETTINGS_OF_KAFKA | {"tidelog.records.check"}


@pytest.mark.parametrize("row", [*TABLE.rows(TOPIC), *TABLE.rows(BROKER)], ids=lambda row: row.name)
def test_every_default_passes_its_own_check_and_survives_its_text(row: Setting) -> None:
    assert row.help
    if row.default is not None:
        assert row.parse(row.default) == row.default
        assert row.parse(row.format(row.default)) == row.default


@pytest.mark.parametrize("row", list(TABLE.rows(TOPIC)), ids=lambda row: row.name)
def test_a_topic_default_is_what_the_broker_setting_behind_it_gives(row: Setting) -> None:
    if row.broker_name is not None:
        broker_row = TABLE.get(row.broker_name, BROKER)
        assert broker_row.type is row.type
        assert Settings(TABLE).effective(row.broker_name) == row.default


def test_log_config_has_the_table_s_defaults() -> None:
    defaults = {row.name: row.default for row in TABLE.rows(TOPIC)}
    assert LogConfig.from_values(defaults) == LogConfig()
    for field in dataclasses.fields(LogConfig):
        # Others follow from the settings.
        if field.init:
            assert field.name.replace("_", ".") in defaults


def test_environment_names_are_not_ambiguous() -> None:
    names = [environment_name(row.name) for row in TABLE.rows(BROKER)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("values", "expected_ms"),
    [
        ({}, 7 * 24 * 3_600_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "5"}, 300_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "5", "log.retention.ms": "7"}, 7),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1", "log.retention.hours": "5"}, -1),
    ],
)
def test_retention_ms_outranks_minutes_and_hours(values: dict[str, str], expected_ms: int) -> None:
    settings = Settings(TABLE)
    settings.update(values, "test")
    assert settings.effective("log.retention.ms") == expected_ms


def test_roll_ms_outranks_hours_and_flush_interval_falls_back_to_the_scheduler_s() -> None:
    settings = Settings(TABLE)
    assert settings.effective("log.roll.ms") == 168 * 3_600_000
    settings.set("log.roll.hours", "1", "test")
    assert settings.effective("log.roll.ms") == 3_600_000
    settings.set("log.roll.ms", "9", "test")
    assert settings.effective("log.roll.ms") == 9
    settings.set("log.roll.jitter.hours", "1", "test")
    assert settings.effective("log.roll.jitter.ms") == 3_600_000
    assert settings.effective("log.flush.interval.ms") == 2**63 - 1
    settings.set("log.flush.scheduler.interval.ms", "250", "test")
    assert settings.effective("log.flush.interval.ms") == 250


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cleanup.policy", "compact, delete", ["compact", "delete"]),
        ("cleanup.policy", "", []),
        ("compression.gzip.level", "-1", -1),
        ("retention.ms", "-1", -1),
        ("retention.bytes", " 1000 ", 1000),
        ("preallocate", "TRUE", True),
        ("min.cleanable.dirty.ratio", "0.01", 0.01),
        ("leader.replication.throttled.replicas", "*", ["*"]),
        ("leader.replication.throttled.replicas", "0:1,1:2", ["0:1", "1:2"]),
        ("segment.bytes", "14", 14),
    ],
)
def test_accepted_topic_values(name: str, text: str, value: object) -> None:
    assert TABLE.get(name, TOPIC).parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("cleanup.policy", "Compact", "expected any of compact, delete, got 'Compact'"),
        ("compression.type", "none", "expected one of uncompressed"),
        ("compression.gzip.level", "0", "expected -1 or 1 to 9"),
        ("compression.lz4.level", "18", "expected 1 to 17"),
        ("retention.ms", "-2", "expected -1 or more"),
        ("retention.ms", "7d", "expected a whole number"),
        ("retention.ms", str(2**63), "expected a number from"),
        ("segment.bytes", "13", "expected 14 or more"),
        ("segment.bytes", str(2**31), "expected a number from"),
        ("min.insync.replicas", "0", "expected 1 or more"),
        ("preallocate", "yes", "expected true or false"),
        ("message.timestamp.type", "createtime", "expected one of CreateTime, LogAppendTime"),
        ("min.cleanable.dirty.ratio", "1.1", "expected 0 to 1"),
        ("min.cleanable.dirty.ratio", "much", "expected a number"),
        ("min.cleanable.dirty.ratio", "nan", "expected 0 to 1"),
        ("remote.storage.enable", "true", "tiered storage is not supported"),
        ("leader.replication.throttled.replicas", "x", "PARTITION:BROKER"),
        ("segment.ms", "0", "expected 1 or more"),
        ("retention.ms", None, "expected a value"),
    ],
)
def test_refused_topic_values_say_what_would_be_right(name: str, text: str | None, reason: str) -> None:
    with pytest.raises(SettingError) as caught:
        TABLE.get(name, TOPIC).parse(text)
    assert name in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "scope", "suggestion"),
    [
        ("retention.mss", TOPIC, "did you mean 'retention.ms'?"),
        ("log.retention.ms", TOPIC, "a topic calls 'retention.ms'"),
        ("retention.ms", BROKER, "'log.retention.ms'"),
        ("num.partition", BROKER, "did you mean 'num.partitions'?"),
        ("num.partitions", TOPIC, "it is a broker setting"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(name: str, scope: SettingScope, suggestion: str) -> None:
    with pytest.raises(SettingError, match=r"unknown (broker|topic) setting") as caught:
        TABLE.get(name, scope)
    assert suggestion in str(caught.value)


def test_types_have_kafka_s_numbers() -> None:
    assert TABLE.get("cleanup.policy", TOPIC).type is SettingType.LIST
    assert int(SettingType.LIST) == 7
    assert TABLE.get("retention.ms", TOPIC).type is SettingType.LONG


def test_listeners_are_shown_with_their_name() -> None:
    row = TABLE.get("listeners", SettingScope.BROKER)
    assert row.format(row.parse("127.0.0.1:9092")) == "PLAINTEXT://127.0.0.1:9092"
    assert row.format(row.parse("plaintext://[::1]:0")) == "PLAINTEXT://[::1]:0"
