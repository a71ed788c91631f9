"""The settings of a broker that are not defaults of topic settings.

What always holds: a row stands here only if some part of the broker reads it; a setting without effect would be a lie.
Names and defaults are Kafka's; where a default differs, the help says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog.common.endpoint import parse_endpoint
from tidelog.common.settings import Check, Setting, SettingType, at_least
from tidelog.server.settings_rows_topic import unlimited_or_positive

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_MIB = 1024 * 1024


def _endpoints(items: list[str]) -> str | None:
    if not items:
        return "expected HOST:PORT or PLAINTEXT://HOST:PORT"
    try:
        for item in items:
            parse_endpoint(item)
    except ValueError as error:
        return str(error)
    return None


def _directories(items: list[str]) -> str | None:
    if not items:
        return "expected one or more directories"
    return None if len(set(items)) == len(items) else "a directory stands twice"


def _bound(value: int) -> str | None:
    return None if value == -1 or value > 0 else "expected -1 (no bound) or 1 or more"


def _buffer_bytes(value: int) -> str | None:
    return None if value == -1 or value > 0 else "expected -1 (the system's choice) or 1 or more"


def _replication_factor(value: int) -> str | None:
    return None if 1 <= value <= 2**15 - 1 else "expected 1 to 32767"


def _row(
    name: str, kind: SettingType, default: Any, help_text: str, check: Check | None = None, **more: Any
) -> Setting:
    return Setting(name, kind, default, help_text, check=check, **more)


def _identity_rows() -> Iterator[Setting]:
    yield _row(
        "node.id",
        SettingType.INT,
        1,
        "The broker's number in the cluster. Kafka asks for one; here the first broker is 1 unless told otherwise.",
        at_least(0),
    )
    yield _row("broker.rack", SettingType.STRING, None, "The rack or zone that clients are told this broker stands in.")
    yield _row(
        "listeners",
        SettingType.LIST,
        ["PLAINTEXT://127.0.0.1:9092"],
        "Address that clients connect to, HOST:PORT or PLAINTEXT://HOST:PORT; port 0 takes a free one. Kafka listens "
        "on all interfaces by default; this broker only on the machine's own, until it is told to do more.",
        _endpoints,
    )
    yield _row(
        "advertised.listeners",
        SettingType.LIST,
        None,
        "Address that clients are told to connect to, where it differs from listeners (behind NAT, in a container).",
        _endpoints,
    )
    yield _row(
        "log.dirs",
        SettingType.LIST,
        None,
        "Directories that hold the partitions' data. Without a value it is one directory a broker inside the data "
        "directory that `--data` names. Kafka's default lies under /tmp, where systems delete files.",
        _directories,
    )


def _topic_creation_rows() -> Iterator[Setting]:
    yield _row(
        "num.partitions",
        SettingType.INT,
        1,
        "Partitions of a topic that is created without a number, and of one that a client's first use creates.",
        at_least(1),
    )
    yield _row(
        "default.replication.factor",
        SettingType.INT,
        1,
        "Replicas of each partition of a topic that is created without a number.",
        _replication_factor,
    )
    yield _row(
        "auto.create.topics.enable",
        SettingType.BOOLEAN,
        True,
        "Whether a client that asks for the metadata of a topic that does not exist gets it created.",
    )
    yield _row("delete.topic.enable", SettingType.BOOLEAN, True, "Whether topics may be deleted.")
    yield _row(
        "unstable.api.versions.enable",
        SettingType.BOOLEAN,
        False,
        "Whether clients are offered versions of requests that Kafka may still change: of those that are served, "
        "InitProducerId 6 for two-phase commit (KIP-939).",
    )


def _network_rows() -> Iterator[Setting]:
    yield _row(
        "socket.request.max.bytes",
        SettingType.INT,
        100 * _MIB,
        "A request that says it is larger than this ends its connection, before any memory is taken for it.",
        at_least(1),
    )
    yield _row(
        "socket.send.buffer.bytes",
        SettingType.INT,
        -1,
        "Size of a connection's send buffer in the kernel; -1 is the system's choice. Kafka's default of 102400 keeps "
        "the system from making it larger for fast readers, which halved the speed of large fetches.",
        _buffer_bytes,
    )
    yield _row(
        "socket.receive.buffer.bytes",
        SettingType.INT,
        -1,
        "Size of a connection's receive buffer in the kernel; -1 is the system's choice. Kafka's default of 102400 "
        "keeps the system from making it larger for fast producers, which halved the speed of large produces.",
        _buffer_bytes,
    )
    yield _row(
        "socket.listen.backlog.size",
        SettingType.INT,
        1024,
        "Connections that may wait in the kernel to be accepted. Kafka's default of 50 makes clients of a connect "
        "storm wait a second and more until they try again.",
        at_least(1),
    )
    yield _row(
        "max.connections",
        SettingType.INT,
        _INT_MAX,
        "Connections that the broker holds at once; more wait until one is closed.",
        at_least(0),
    )
    yield _row(
        "max.connections.per.ip",
        SettingType.INT,
        _INT_MAX,
        "Connections from one address; more are closed at once.",
        at_least(0),
    )
    yield _row(
        "connections.max.idle.ms",
        SettingType.LONG,
        600_000,
        "A connection without traffic for this long is closed; -1 never closes it.",
        unlimited_or_positive,
    )
    yield _row(
        "queued.max.request.bytes",
        SettingType.LONG,
        128 * _MIB,
        "Bytes of requests that may be held in memory; with more, the broker stops reading until some are answered. "
        "Kafka has no bound by default (-1); this broker promises one, so that clients can't exhaust its memory.",
        _bound,
    )
    yield _row(
        "fetch.max.bytes",
        SettingType.INT,
        55 * _MIB,
        "Most bytes of records that one fetch answer carries, whatever the client asks for.",
        at_least(1024),
    )
    yield _row(
        "max.incremental.fetch.session.cache.slots",
        SettingType.INT,
        1000,
        "Fetch sessions that are remembered; with more, the least useful is forgotten.",
        at_least(0),
    )
    yield _row(
        "max.request.partition.size.limit",
        SettingType.INT,
        2000,
        "Most partitions that one page of DescribeTopicPartitions holds, whatever the client asks for.",
        at_least(1),
    )


def _log_rows() -> Iterator[Setting]:
    yield _row(
        "log.roll.hours", SettingType.INT, 168, "As log.roll.ms, in hours; log.roll.ms outranks it.", at_least(1)
    )
    yield _row(
        "log.roll.jitter.hours",
        SettingType.INT,
        0,
        "As log.roll.jitter.ms, in hours; log.roll.jitter.ms outranks it.",
        at_least(0),
    )
    yield _row(
        "log.retention.minutes",
        SettingType.INT,
        None,
        "As log.retention.ms, in minutes; log.retention.ms outranks it.",
        unlimited_or_positive,
    )
    yield _row(
        "log.retention.hours",
        SettingType.INT,
        168,
        "As log.retention.ms, in hours; log.retention.ms and log.retention.minutes outrank it.",
        unlimited_or_positive,
    )
    yield _row(
        "log.flush.scheduler.interval.ms",
        SettingType.LONG,
        _LONG_MAX,
        "How often the broker looks for logs that flush.ms wants flushed; it is also the value of "
        "log.flush.interval.ms where that has none.",
        at_least(1),
    )
    yield _row(
        "log.flush.offset.checkpoint.interval.ms",
        SettingType.INT,
        60_000,
        "How often the offset up to which each log is flushed is written down; it bounds the work of a recovery.",
        at_least(0),
    )
    yield _row(
        "replica.high.watermark.checkpoint.interval.ms",
        SettingType.LONG,
        5_000,
        "How often the high watermark of each partition is written down.",
        at_least(1),
    )
    yield _row(
        "num.recovery.threads.per.data.dir",
        SettingType.INT,
        2,
        "Threads that load and recover logs at the start, for each data directory.",
        at_least(1),
    )
    yield _row(
        "producer.id.expiration.ms",
        SettingType.INT,
        86_400_000,
        "A producer that wrote nothing for this long is forgotten, and with it the sequence numbers that "
        "catch its repeats.",
        at_least(1),
    )
    yield _row(
        "producer.id.expiration.check.interval.ms",
        SettingType.INT,
        600_000,
        "How often producers to forget are looked for.",
        at_least(1),
    )
    yield _row(
        "transaction.partition.verification.enable",
        SettingType.BOOLEAN,
        True,
        "Whether the coordinator of a transaction is asked before the transaction begins in a partition (KIP-890). "
        "Without it a late retry of an aborted transaction can begin one that nobody ends.",
    )


def broker_rows() -> Iterator[Setting]:
    yield from _identity_rows()
    yield from _topic_creation_rows()
    yield from _network_rows()
    yield from _log_rows()
