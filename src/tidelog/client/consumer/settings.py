"""The settings of consumers: Kafka's names and defaults, what they mean, and which go together.

What always holds: a `ConsumerSettings` has been checked as a whole, so nothing about it fails later: the reset policy
is known, sizes are positive, and settings that need a group have one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidelog.client.consumer.group_runner import GroupSettings
from tidelog.client.consumer.interceptors import ConsumerInterceptor
from tidelog.client.consumer.subscription import TO_BEGINNING, TO_END, OffsetReset
from tidelog.client.errors import ConfigError
from tidelog.client.network.cluster import ClusterSettings
from tidelog.client.settings import (
    CLIENT_SETTINGS,
    ClientOptions,
    ClientSettings,
    ClientSettingsTable,
    is_serializer,
    object_setting,
)
from tidelog.common.light_dataclass import dataclass
from tidelog.common.settings import Setting, SettingType, at_least, one_of

Deserializer = Callable[[str, bytes, Any], Any]
"""Makes a key or value of bytes: called with the topic, the bytes and the record's headers; never for null."""

MAX_PARTITION_FETCH_BYTES = 1024 * 1024
READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"
_DURATION = re.compile(
    r"P(?!$)(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
_BY_DURATION = "by_duration:"
_DURATION_MS_MAX = 2**62  # far longer than anyone needs, and no sum with it overflows 64 bits


class ConsumerOptions(ClientOptions, total=False):
    """The settings of a consumer as keyword arguments."""

    allow_auto_create_topics: bool
    auto_commit_interval_ms: int
    auto_offset_reset: str
    check_crcs: bool
    client_rack: str
    consumer_timeout_ms: int
    enable_auto_commit: bool
    exclude_internal_topics: bool
    fetch_growth_max_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    group_id: str
    group_instance_id: str
    group_protocol: str
    group_remote_assignor: str
    heartbeat_interval_ms: int
    interceptor_classes: Sequence[ConsumerInterceptor]
    isolation_level: str
    key_deserializer: Deserializer
    max_partition_fetch_bytes: int
    max_poll_interval_ms: int
    max_poll_records: int
    partition_assignment_strategy: Sequence[object] | str
    queued_max_bytes: int
    session_timeout_ms: int
    value_deserializer: Deserializer


def read_reset(text: str) -> OffsetReset | None:
    """The policy that `auto.offset.reset` names; None for "none". Raises ValueError."""
    if text == "earliest":
        return TO_BEGINNING
    if text == "latest":
        return TO_END
    if text == "none":
        return None
    match = _DURATION.fullmatch(text.removeprefix(_BY_DURATION)) if text.startswith(_BY_DURATION) else None
    if match is None:
        raise ValueError("expected earliest, latest, none or by_duration:DURATION, as by_duration:PT1H30M or P7D")
    days, hours, minutes = (int(match[name] or 0) for name in ("days", "hours", "minutes"))
    seconds = (days * 24 + hours) * 3600 + minutes * 60
    return OffsetReset(0, back_ms=min(seconds * 1000 + round(float(match["seconds"] or 0) * 1000), _DURATION_MS_MAX))


def _reset_check(text: str) -> str | None:
    try:
        read_reset(text)
    except ValueError as error:
        return str(error)
    return None


def _strategy_check(value: object) -> str | None:
    return None if value else "expected at least one assignor"


_INT32_MAX = 0x7FFFFFFF
_READING: tuple[Setting, ...] = (
    Setting(
        "auto.offset.reset",
        SettingType.STRING,
        "latest",
        "Where to start without a valid committed offset: earliest, latest, none (raise an error), or "
        "by_duration:PT1H for the records of the last hour.",
        check=_reset_check,
    ),
    Setting(
        "isolation.level",
        SettingType.STRING,
        READ_UNCOMMITTED,
        "read_committed skips records of aborted transactions and waits for open ones to end.",
        check=one_of(READ_UNCOMMITTED, READ_COMMITTED),
    ),
    Setting("max.poll.records", SettingType.INT, 500, "The most records that one poll returns.", check=at_least(1)),
    Setting(
        "fetch.min.bytes",
        SettingType.INT,
        1,
        "How many bytes a broker collects before it answers a fetch, unless fetch.max.wait.ms runs out.",
        check=at_least(0),
    ),
    Setting(
        "fetch.max.wait.ms",
        SettingType.INT,
        500,
        "How long a broker may wait for fetch.min.bytes.",
        check=at_least(0),
    ),
    Setting(
        "fetch.max.bytes",
        SettingType.INT,
        50 * 1024 * 1024,
        "The most bytes in one fetch response; a single larger batch is still returned.",
        check=at_least(1),
    ),
    Setting(
        "max.partition.fetch.bytes",
        SettingType.INT,
        MAX_PARTITION_FETCH_BYTES,
        "The most bytes per partition in a fetch response; a single larger batch is still returned.",
        check=at_least(1),
    ),
    Setting(
        "fetch.growth.max.bytes",
        SettingType.INT,
        4 * 1024 * 1024,
        "The most bytes per partition in a fetch response while the consumer catches up, if "
        "max.partition.fetch.bytes is left at its default; 0: never more than that, like Kafka's client.",
        check=at_least(0),
    ),
    Setting(
        "queued.max.bytes",
        SettingType.LONG,
        64 * 1024 * 1024,
        "How many fetched bytes may be waiting for poll before fetching pauses.",
        check=at_least(1),
    ),
    Setting("check.crcs", SettingType.BOOLEAN, True, "Whether to verify the checksum of every batch."),
    Setting(
        "client.rack",
        SettingType.STRING,
        "",
        "The rack where this client runs: partitions are read from a replica there if brokers "
        "have `replica.selector.class` set, and assignors know of it.",
    ),
    object_setting(
        "key.deserializer", "Converts bytes to keys; called with topic, bytes and headers.", check=is_serializer
    ),
    object_setting(
        "value.deserializer", "Converts bytes to values; called with topic, bytes and headers.", check=is_serializer
    ),
    object_setting("interceptor.classes", "Interceptors that see records before you do, and commits.", default=()),
    Setting(
        "consumer.timeout.ms",
        SettingType.LONG,
        -1,
        "How long iteration waits for a record before it ends; -1: forever.",
        check=at_least(-1),
    ),
    Setting(
        "allow.auto.create.topics",
        SettingType.BOOLEAN,
        True,
        "Whether the broker may create a missing topic that is subscribed to or assigned.",
    ),
    Setting(
        "exclude.internal.topics",
        SettingType.BOOLEAN,
        True,
        "Whether patterns skip internal topics such as __consumer_offsets.",
    ),
)
_GROUP: tuple[Setting, ...] = (
    Setting(
        "group.id",
        SettingType.STRING,
        None,
        "The consumer group, whose members share partitions and committed offsets.",
    ),
    Setting(
        "group.instance.id",
        SettingType.STRING,
        None,
        "A name that survives restarts: the member keeps its partitions if it returns before its session expires.",
    ),
    Setting(
        "group.protocol",
        SettingType.STRING,
        "classic",
        "classic, or consumer: the newer one, in which the broker assigns partitions.",
        check=one_of("classic", "consumer"),
    ),
    Setting(
        "group.remote.assignor",
        SettingType.STRING,
        None,
        "Which of the broker's assignors to use with group.protocol=consumer; by default the broker chooses.",
    ),
    object_setting(
        "partition.assignment.strategy",
        "Assignors in order of preference, by name (range, roundrobin, sticky, cooperative-sticky) or your own.",
        default=("range", "cooperative-sticky"),
        check=_strategy_check,
    ),
    Setting(
        "session.timeout.ms",
        SettingType.INT,
        45_000,
        "How long the group waits for a heartbeat before it removes this member.",
        check=at_least(1),
    ),
    Setting(
        "heartbeat.interval.ms",
        SettingType.INT,
        3_000,
        "The interval between heartbeats; keep it well below session.timeout.ms.",
        check=at_least(1),
    ),
    Setting(
        "max.poll.interval.ms",
        SettingType.INT,
        300_000,
        "The longest time between two polls before the member leaves its group.",
        check=at_least(1),
    ),
    Setting(
        "enable.auto.commit",
        SettingType.BOOLEAN,
        True,
        "Whether to commit positions automatically, during polls and on close.",
    ),
    Setting(
        "auto.commit.interval.ms",
        SettingType.INT,
        5_000,
        "The interval between automatic commits.",
        check=at_least(0),
    ),
)
CONSUMER_SETTINGS = ClientSettingsTable("Consumer", (*CLIENT_SETTINGS, *_READING, *_GROUP))


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """A consumer's settings, parsed and checked."""

    cluster: ClusterSettings
    group: GroupSettings | None
    reset: OffsetReset | None
    is_read_committed: bool
    max_poll_records: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    fetch_growth_max_bytes: int
    queued_max_bytes: int
    check_crcs: bool
    client_rack: str
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None
    interceptors: tuple[ConsumerInterceptor, ...]
    consumer_timeout_s: float | None
    allow_auto_create_topics: bool
    exclude_internal_topics: bool

    @classmethod
    def read(cls, given: Mapping[str, object] | None, options: Mapping[str, object]) -> ConsumerSettings:
        values = CONSUMER_SETTINGS.read(given, options)
        consumer_timeout_s = values.get_seconds("consumer.timeout.ms")
        return cls(
            cluster=ClusterSettings.read(values),
            group=_group(values),
            reset=read_reset(values["auto.offset.reset"]),
            is_read_committed=values["isolation.level"] == READ_COMMITTED,
            max_poll_records=values["max.poll.records"],
            fetch_min_bytes=values["fetch.min.bytes"],
            fetch_max_wait_ms=values["fetch.max.wait.ms"],
            fetch_max_bytes=values["fetch.max.bytes"],
            max_partition_fetch_bytes=values["max.partition.fetch.bytes"],
            fetch_growth_max_bytes=_growth_max(values["max.partition.fetch.bytes"], values["fetch.growth.max.bytes"]),
            queued_max_bytes=values["queued.max.bytes"],
            check_crcs=values["check.crcs"],
            client_rack=values["client.rack"],
            key_deserializer=values["key.deserializer"],
            value_deserializer=values["value.deserializer"],
            interceptors=tuple(values["interceptor.classes"]),
            consumer_timeout_s=consumer_timeout_s if consumer_timeout_s >= 0 else None,
            allow_auto_create_topics=values["allow.auto.create.topics"],
            exclude_internal_topics=values["exclude.internal.topics"],
        )


def _growth_max(partition_fetch_bytes: int, growth_max_bytes: int) -> int:
    """The limit for growing fetches of a partition. A size that the user set is kept: there must be a reason for it."""
    return growth_max_bytes if partition_fetch_bytes == MAX_PARTITION_FETCH_BYTES else 0


def _group(values: ClientSettings) -> GroupSettings | None:
    if not values["group.id"]:
        for name in ("group.instance.id", "group.remote.assignor"):
            if values[name] is not None:
                raise ConfigError(f"{name} needs a group: set group.id too")
        if values.is_set("enable.auto.commit") and values["enable.auto.commit"]:
            raise ConfigError("enable.auto.commit needs a group to commit for: set group.id too")
        return None
    heartbeat_ms, session_ms = values["heartbeat.interval.ms"], values["session.timeout.ms"]
    if values["group.protocol"] == "classic" and heartbeat_ms >= session_ms:
        raise ConfigError(
            f"heartbeat.interval.ms ({heartbeat_ms}) must be below session.timeout.ms ({session_ms}); a third is good"
        )
    strategy = values["partition.assignment.strategy"]
    if isinstance(strategy, str):
        strategy = [item.strip() for item in strategy.split(",")]
    return GroupSettings(
        group_id=values["group.id"],
        group_instance_id=values["group.instance.id"],
        group_protocol=values["group.protocol"],
        group_remote_assignor=values["group.remote.assignor"],
        partition_assignment_strategy=tuple(strategy),
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=heartbeat_ms,
        max_poll_interval_ms=values["max.poll.interval.ms"],
        enable_auto_commit=values["enable.auto.commit"],
        auto_commit_interval_ms=values["auto.commit.interval.ms"],
        default_api_timeout_ms=values["default.api.timeout.ms"],
        retry_backoff_ms=values["retry.backoff.ms"],
        retry_backoff_max_ms=values["retry.backoff.max.ms"],
        isolation_level=values["isolation.level"],
        client_rack=values["client.rack"] or None,
    )
