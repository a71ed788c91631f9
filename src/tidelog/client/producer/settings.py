"""The settings of producers: Kafka's names and defaults, what they mean, and which go together.

What always holds: a `ProducerSettings` is consistent: idempotence has the acks, retries and requests in flight that it
needs, and `delivery.timeout.ms` leaves room for one request. If a default conflicts with a setting that was given, the
default yields; if two given settings conflict, ConfigError says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidelog.client.errors import ConfigError
from tidelog.client.network.backoff import Backoff
from tidelog.client.network.cluster import ClusterSettings
from tidelog.client.producer.interceptors import ProducerInterceptor
from tidelog.client.producer.partitioners import Partitioner, RoundRobinPartitioner
from tidelog.client.settings import (
    CLIENT_SETTINGS,
    ClientOptions,
    ClientSettings,
    ClientSettingsTable,
    is_serializer,
    object_setting,
)
from tidelog.common.light_dataclass import dataclass
from tidelog.common.settings import Setting, SettingType, at_least, between, one_of
from tidelog.records.batch import Compression

Serializer = Callable[[str, Any, Any], bytes | None]
"""Makes bytes of a key or value: called with the topic, the value and the record's headers."""

IN_FLIGHT_MAX_WITH_IDEMPOTENCE = 5  # brokers recognize a producer's last five batches
INT32_MAX = 0x7FFFFFFF


class ProducerOptions(ClientOptions, total=False):
    """The settings of a producer as keyword arguments."""

    acks: int | str
    batch_size: int
    batch_growth_max_bytes: int
    buffer_memory: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delivery_timeout_ms: int
    enable_idempotence: bool
    interceptor_classes: Sequence[ProducerInterceptor]
    key_serializer: Serializer
    linger_ms: int
    max_block_ms: int
    max_in_flight_requests_per_connection: int
    max_request_size: int
    partitioner_class: Partitioner | Callable[..., int] | str
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    partitioner_ignore_keys: bool
    retries: int
    transaction_timeout_ms: int
    transaction_two_phase_commit_enable: bool
    transactional_id: str
    value_serializer: Serializer


def _acks(value: str) -> str | None:
    return None if value in ("all", "-1", "0", "1") else "expected all, 1 or 0"


def _partitioner(value: object) -> str | None:
    if isinstance(value, str):
        return None if value in ("default", "round_robin") else "expected default, round_robin or a partitioner"
    return None if callable(value) or hasattr(value, "partition") else "expected something with a partition method"


PRODUCER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "acks",
        SettingType.STRING,
        "all",
        "Who must store a record before it counts as delivered: all in-sync replicas, the leader (1), or nobody (0).",
        check=_acks,
    ),
    Setting(
        "batch.size",
        SettingType.INT,
        16_384,
        "The size in bytes at which a partition's batch is full and gets sent.",
        check=at_least(0),
    ),
    Setting(
        "batch.growth.max.bytes",
        SettingType.INT,
        1_048_576,
        "How large a batch may grow beyond batch.size while earlier ones wait to be sent, up to "
        "max.request.size; 0: never beyond batch.size, like Kafka's client.",
        check=at_least(0),
    ),
    Setting(
        "buffer.memory",
        SettingType.LONG,
        33_554_432,
        "The memory in bytes for records that are not acknowledged yet; sends wait while it is full.",
        check=at_least(1),
    ),
    Setting(
        "compression.type",
        SettingType.STRING,
        "none",
        "The compression of batches.",
        check=one_of("none", "gzip", "snappy", "lz4", "zstd"),
    ),
    Setting("compression.gzip.level", SettingType.INT, -1, "gzip level: 1 to 9, or -1 for its default."),
    Setting("compression.lz4.level", SettingType.INT, 9, "lz4 level: 1 to 17.", check=between(1, 17)),
    Setting("compression.zstd.level", SettingType.INT, 3, "zstd level: -131072 to 22.", check=between(-131_072, 22)),
    Setting(
        "delivery.timeout.ms",
        SettingType.INT,
        120_000,
        "How long a record may take from send to acknowledgement, including retries, before it fails.",
        check=at_least(0),
    ),
    Setting(
        "enable.idempotence",
        SettingType.BOOLEAN,
        True,
        "Number batches, so that brokers store retried ones once and in order.",
    ),
    object_setting("interceptor.classes", "Interceptors to call for each record, in this order.", default=()),
    object_setting("key.serializer", "Converts keys to bytes; without one they must be bytes.", check=is_serializer),
    Setting(
        "linger.ms",
        SettingType.LONG,
        5,
        "How long a batch that isn't full waits for more records; 0 sends immediately.",
        check=at_least(0),
    ),
    Setting(
        "max.block.ms",
        SettingType.LONG,
        60_000,
        "How long a send may wait for room in the buffer, and a record for its topic's metadata.",
        check=at_least(0),
    ),
    Setting(
        "max.in.flight.requests.per.connection",
        SettingType.INT,
        5,
        "The most requests in flight to a broker; without idempotence, retries may reorder records if it is above 1.",
        check=at_least(1),
    ),
    Setting(
        "max.request.size",
        SettingType.INT,
        1_048_576,
        "The largest request, and therefore the largest record, in bytes.",
        check=at_least(0),
    ),
    object_setting(
        "partitioner.class",
        "default (by key, else sticky), round_robin, or your own, called with topic, key, value, partitions.",
        default="default",
        check=_partitioner,
    ),
    Setting(
        "partitioner.adaptive.partitioning.enable",
        SettingType.BOOLEAN,
        True,
        "Send keyless records more often to partitions with fewer queued batches.",
    ),
    Setting(
        "partitioner.availability.timeout.ms",
        SettingType.LONG,
        0,
        "Keep keyless records away from a broker that has accepted nothing for this long; 0: never.",
        check=at_least(0),
    ),
    Setting(
        "partitioner.ignore.keys",
        SettingType.BOOLEAN,
        False,
        "Partition records with a key like those without, for balance.",
    ),
    Setting(
        "retries",
        SettingType.INT,
        INT32_MAX,
        "How often to retry a batch; usually delivery.timeout.ms is reached first.",
        check=at_least(0),
    ),
    Setting(
        "transaction.timeout.ms",
        SettingType.INT,
        60_000,
        "How long a transaction may stay open before the broker aborts it.",
        check=at_least(1),
    ),
    Setting(
        "transaction.two.phase.commit.enable",
        SettingType.BOOLEAN,
        False,
        "Let prepared transactions stay open indefinitely, for an external coordinator (KIP-939).",
    ),
    Setting(
        "transactional.id",
        SettingType.STRING,
        None,
        "Makes the producer transactional; the id identifies it across restarts.",
    ),
    object_setting(
        "value.serializer", "Converts values to bytes; without one they must be bytes.", check=is_serializer
    ),
)

PRODUCER_TABLE = ClientSettingsTable("Producer", (*CLIENT_SETTINGS, *PRODUCER_SETTINGS))


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """A producer's settings, parsed and checked; waits on the event loop are in seconds."""

    cluster: ClusterSettings
    acks: int  # -1: all
    batch_size: int
    batch_growth_max_bytes: int
    buffer_memory: int
    compression: Compression
    compression_level: int | None
    delivery_timeout_ms: int
    enable_idempotence: bool
    interceptors: tuple[ProducerInterceptor, ...]
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    linger_ms: int
    max_block_s: float
    max_in_flight: int
    max_request_size: int
    partitioner: Partitioner | None  # None: the built-in one
    adaptive_partitioning: bool
    availability_timeout_ms: int
    ignore_keys: bool
    request_timeout_ms: int
    retries: int
    retry_backoff: Backoff
    transactional_id: str | None
    transaction_timeout_ms: int
    two_phase_commit: bool

    @classmethod
    def read(cls, given: Mapping[str, object] | None, options: Mapping[str, object]) -> ProducerSettings:
        values = PRODUCER_TABLE.read(given, options)
        acks = {"all": -1, "-1": -1, "0": 0, "1": 1}[values.get_str("acks")]
        cluster = ClusterSettings.read(values)
        compression = Compression.from_label(values.get_str("compression.type"))
        level_name = f"compression.{compression.label}.level"
        max_request_size = values.get_int("max.request.size")
        return cls(
            cluster=cluster,
            acks=acks,
            batch_size=max(values.get_int("batch.size"), 1),
            batch_growth_max_bytes=min(values.get_int("batch.growth.max.bytes"), max_request_size),
            buffer_memory=values.get_int("buffer.memory"),
            compression=compression,
            compression_level=values.get_int(level_name) if level_name in PRODUCER_TABLE.rows else None,
            delivery_timeout_ms=_delivery_timeout_ms(values),
            enable_idempotence=_idempotence(values, acks),
            interceptors=tuple(values["interceptor.classes"]),
            key_serializer=values["key.serializer"],
            value_serializer=values["value.serializer"],
            linger_ms=values.get_int("linger.ms"),
            max_block_s=values.get_seconds("max.block.ms"),
            max_in_flight=values.get_int("max.in.flight.requests.per.connection"),
            max_request_size=max_request_size,
            partitioner=_chosen_partitioner(values["partitioner.class"]),
            adaptive_partitioning=values.get_bool("partitioner.adaptive.partitioning.enable"),
            availability_timeout_ms=values.get_int("partitioner.availability.timeout.ms"),
            ignore_keys=values.get_bool("partitioner.ignore.keys"),
            request_timeout_ms=values.get_int("request.timeout.ms"),
            retries=values.get_int("retries"),
            retry_backoff=cluster.retry,
            transactional_id=values["transactional.id"],
            transaction_timeout_ms=values.get_int("transaction.timeout.ms"),
            two_phase_commit=values.get_bool("transaction.two.phase.commit.enable"),
        )


def _delivery_timeout_ms(values: ClientSettings) -> int:
    """The delivery timeout. It must cover linger and one request; a default that is too short is extended."""
    timeout_ms = values.get_int("delivery.timeout.ms")
    least_ms = min(values.get_int("linger.ms") + values.get_int("request.timeout.ms"), INT32_MAX)
    if timeout_ms >= least_ms:
        return timeout_ms
    if values.is_set("delivery.timeout.ms"):
        raise ConfigError(
            f"delivery.timeout.ms={timeout_ms} must be at least linger.ms + request.timeout.ms, which is {least_ms}"
        )
    return least_ms


def _idempotence(values: ClientSettings, acks: int) -> bool:
    wanted = values.get_bool("enable.idempotence")
    transactional = values["transactional.id"] is not None
    if transactional and not wanted:
        raise ConfigError("a producer with a transactional.id needs enable.idempotence")
    if not wanted:
        return False
    in_flight = values.get_int("max.in.flight.requests.per.connection")
    problem = None
    if acks != -1:
        problem = f"acks=all, not {values['acks']}"
    elif values.get_int("retries") == 0:
        problem = "retries above 0"
    elif in_flight > IN_FLIGHT_MAX_WITH_IDEMPOTENCE:
        problem = f"max.in.flight.requests.per.connection of at most {IN_FLIGHT_MAX_WITH_IDEMPOTENCE}, not {in_flight}"
    if problem is None:
        return True
    if transactional:
        raise ConfigError(f"a producer with a transactional.id needs {problem}")
    if values.is_set("enable.idempotence"):
        raise ConfigError(f"enable.idempotence needs {problem}")
    return False  # a default that the given settings rule out yields, as in Kafka's client


def _chosen_partitioner(value: Any) -> Partitioner | None:
    if value == "default":
        return None
    if value == "round_robin":
        return RoundRobinPartitioner()
    return value if hasattr(value, "partition") else _Called(value)


class _Called:
    """A plain function as a partitioner."""

    def __init__(self, function: Callable[..., int]) -> None:
        self._function = function

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        return self._function(topic, key, value, partitions)
