"""The settings of a broker that are not defaults of topic settings.

What always holds: every row is read by some part of the broker; there are no settings without effect. Names and
defaults are Kafka's; where a default differs, the help says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog.common.endpoint import PLAINTEXT, parse_endpoint
from tidelog.common.settings import Check, Setting, SettingType, at_least, between, one_of
from tidelog.metadata.opening import store_problem
from tidelog.server.settings_rows_topic import unlimited_or_positive

# The name that Kafka gives this way of choosing.
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_MIB = 1024 * 1024


def _endpoints(items: list[str]) -> str | None:
    if not items:
        return "expected HOST:PORT or NAME://HOST:PORT"
    try:
        for item in items:
            parse_endpoint(item)
    except ValueError as error:
        return str(error)
    return None


def _whole_endpoints(items: list[str]) -> list[str]:
    """Add the listener's name, as Kafka's tools show and expect it."""
    return [str(parse_endpoint(item)) for item in items]


def _protocols(text: str) -> str | None:
    for item in text.split(","):
        name, _, protocol = item.strip().partition(":")
        if not name or protocol.upper() != PLAINTEXT:
            return f"expected NAME:PLAINTEXT, comma-separated, got {item!r}"
    return None


def _directories(items: list[str]) -> str | None:
    if not items:
        return "expected one or more directories"
    return None if len(set(items)) == len(items) else "a directory is listed twice"


def _bound(value: int) -> str | None:
    return None if value == -1 or value > 0 else "expected -1 (no limit) or 1 or more"


def _buffer_bytes(value: int) -> str | None:
    return None if value == -1 or value > 0 else "expected -1 (let the system choose) or 1 or more"


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
        "The broker's id in the cluster. Kafka requires one; in Tidelog it is 1 unless set.",
        at_least(0),
    )
    yield _row(
        "broker.rack", SettingType.STRING, None, "The rack or availability zone of this broker, as clients see it."
    )
    yield _row(
        "listeners",
        SettingType.LIST,
        ["PLAINTEXT://127.0.0.1:9092"],
        "Addresses to listen on, comma-separated: HOST:PORT or NAME://HOST:PORT. Port 0 picks a free one. With several "
        "names, as for a private network and for clients outside, clients get the addresses of the listener that "
        "they came in by. Kafka listens on all interfaces by default; Tidelog only on loopback, since it has no "
        "authentication yet.",
        _endpoints,
        normalize=_whole_endpoints,
    )
    yield _row(
        "advertised.listeners",
        SettingType.LIST,
        None,
        "Addresses that clients should connect to, one for each listener for which it differs from listeners (behind "
        "NAT or in a container).",
        _endpoints,
        normalize=_whole_endpoints,
    )
    yield _row(
        "listener.security.protocol.map",
        SettingType.STRING,
        "PLAINTEXT:PLAINTEXT",
        "The protocol of each listener by its name, as in INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT. There is only "
        "PLAINTEXT so far.",
        _protocols,
    )
    yield _row(
        "inter.broker.listener.name",
        SettingType.STRING,
        None,
        "Name of the listener that brokers reach each other by; the same on all brokers. Tidelog takes the first of "
        "listeners unless it is set.",
        normalize=str.upper,
    )
    yield _row(
        "tidelog.metadata",
        SettingType.STRING,
        "sqlite",
        "Where the cluster's metadata is: sqlite (a file in the data directory), sqlite:PATH for several brokers on "
        "one machine, or zookeeper://HOST:PORT,HOST:PORT/PATH for several machines; the same for all of its brokers.",
        store_problem,
    )
    yield _row(
        "log.dirs",
        SettingType.LIST,
        None,
        "Directories for the partitions' data. By default, one directory for each broker inside the data directory "
        "(`--data`). Kafka's default is under /tmp, where the system may delete files.",
        _directories,
    )


def _leadership_rows() -> Iterator[Setting]:
    yield _row(
        "auto.leader.rebalance.enable",
        SettingType.BOOLEAN,
        True,
        "Whether the controller gives partitions back to their preferred leaders, the first of their replicas, once "
        "these are in sync again.",
    )
    yield _row(
        "leader.imbalance.check.interval.seconds",
        SettingType.LONG,
        300,
        "How often the controller checks whether leaders should go back to the preferred ones.",
        at_least(1),
    )
    yield _row(
        "leader.imbalance.per.broker.percentage",
        SettingType.INT,
        10,
        "How many percent of the partitions that a broker should lead may be led by others before the controller "
        "gives them back.",
        between(0, 100),
    )


def _topic_creation_rows() -> Iterator[Setting]:
    yield _row(
        "num.partitions",
        SettingType.INT,
        1,
        "Number of partitions for topics created without one, including automatically created topics.",
        at_least(1),
    )
    yield _row(
        "tidelog.max.partitions",
        SettingType.INT,
        200_000,
        "Maximum number of partitions of all topics together, including automatically created ones. Beyond that, new "
        "topics and partitions are refused with POLICY_VIOLATION, except for the brokers' own topics. An idle "
        "partition takes about 4 kB of memory. Kafka has no such limit.",
        at_least(1),
    )
    yield _row(
        "default.replication.factor",
        SettingType.INT,
        1,
        "Replication factor for topics created without one.",
        _replication_factor,
    )
    yield _row(
        "auto.create.topics.enable",
        SettingType.BOOLEAN,
        True,
        "Whether to create a topic when a client requests metadata for one that doesn't exist.",
    )
    yield _row("delete.topic.enable", SettingType.BOOLEAN, True, "Whether topics can be deleted.")
    yield _row(
        "unstable.api.versions.enable",
        SettingType.BOOLEAN,
        False,
        "Whether to offer versions of APIs that Kafka may still change. The only one is InitProducerId 6, for "
        "two-phase commit (KIP-939).",
    )


def _network_rows() -> Iterator[Setting]:
    yield _row(
        "socket.request.max.bytes",
        SettingType.INT,
        100 * _MIB,
        "Largest request accepted. The broker closes the connection before it allocates memory for a larger one.",
        at_least(1),
    )
    yield _row(
        "socket.send.buffer.bytes",
        SettingType.INT,
        -1,
        "Size of a socket's send buffer; -1 lets the operating system choose. Kafka's default of 102400 stops the "
        "system from enlarging it for fast readers, which halved the speed of large fetches.",
        _buffer_bytes,
    )
    yield _row(
        "socket.receive.buffer.bytes",
        SettingType.INT,
        -1,
        "Size of a socket's receive buffer; -1 lets the operating system choose. Kafka's default of 102400 stops the "
        "system from enlarging it for fast producers, which halved the speed of large produce requests.",
        _buffer_bytes,
    )
    yield _row(
        "socket.listen.backlog.size",
        SettingType.INT,
        1024,
        "Maximum number of connections waiting to be accepted. With Kafka's default of 50, a burst of connecting "
        "clients has to wait a second or more and retry.",
        at_least(1),
    )
    yield _row(
        "max.connections",
        SettingType.INT,
        _INT_MAX,
        "Maximum number of open connections. Further clients wait until a connection is closed.",
        at_least(0),
        dynamic=True,
    )
    yield _row(
        "max.connections.per.ip",
        SettingType.INT,
        _INT_MAX,
        "Maximum number of connections from one IP address. Further ones are closed immediately.",
        at_least(0),
        dynamic=True,
    )
    yield _row(
        "connections.max.idle.ms",
        SettingType.LONG,
        600_000,
        "Close connections that have been idle for this long; -1 never closes them.",
        unlimited_or_positive,
    )
    yield _row(
        "queued.max.request.bytes",
        SettingType.LONG,
        128 * _MIB,
        "Maximum bytes of requests held in memory; beyond that, the broker stops reading until some are answered. "
        "Kafka has no limit by default (-1); Tidelog sets one so that clients can't exhaust its memory.",
        _bound,
    )
    yield _row(
        "tidelog.queued.max.response.bytes",
        SettingType.LONG,
        128 * _MIB,
        "Maximum bytes of responses held in memory until clients read them; beyond that, large responses wait until "
        "others have been read. Small responses, and the records of a fetch, which are sent from files, do not count. "
        "A single response that exceeds the limit closes its connection. Kafka has no such limit.",
        at_least(1024 * 1024),
    )
    yield _row(
        "fetch.max.bytes",
        SettingType.INT,
        55 * _MIB,
        "Maximum bytes of records in a fetch response, even if the client asks for more.",
        at_least(1024),
    )
    yield _row(
        "max.incremental.fetch.session.cache.slots",
        SettingType.INT,
        1000,
        "Maximum number of incremental fetch sessions; beyond that, the least useful one is evicted.",
        at_least(0),
    )
    yield _row(
        "max.request.partition.size.limit",
        SettingType.INT,
        2000,
        "Maximum partitions in one page of DescribeTopicPartitions, even if the client asks for more.",
        at_least(1),
    )


def _log_rows() -> Iterator[Setting]:
    yield _row(
        "log.roll.hours",
        SettingType.INT,
        168,
        "Like log.roll.ms, but in hours; log.roll.ms takes precedence.",
        at_least(1),
    )
    yield _row(
        "log.roll.jitter.hours",
        SettingType.INT,
        0,
        "Like log.roll.jitter.ms, but in hours; log.roll.jitter.ms takes precedence.",
        at_least(0),
    )
    yield _row(
        "log.retention.minutes",
        SettingType.INT,
        None,
        "Like log.retention.ms, but in minutes; log.retention.ms takes precedence.",
        unlimited_or_positive,
    )
    yield _row(
        "log.retention.hours",
        SettingType.INT,
        168,
        "Like log.retention.ms, but in hours; log.retention.ms and log.retention.minutes take precedence.",
        unlimited_or_positive,
    )
    yield _row(
        "log.flush.scheduler.interval.ms",
        SettingType.LONG,
        _LONG_MAX,
        "How often to check for logs that flush.ms says to flush; also the default of log.flush.interval.ms.",
        at_least(1),
    )
    yield _row(
        "log.flush.offset.checkpoint.interval.ms",
        SettingType.INT,
        60_000,
        "How often to record how far each log has been flushed, which limits the work of a recovery.",
        at_least(0),
    )
    yield _row(
        "replica.high.watermark.checkpoint.interval.ms",
        SettingType.LONG,
        5_000,
        "How often to save the high watermark of each partition to disk.",
        at_least(1),
    )
    yield _row(
        "num.recovery.threads.per.data.dir",
        SettingType.INT,
        2,
        "Number of threads per data directory that load and recover logs at startup. A change takes effect at the next "
        "start.",
        at_least(1),
        dynamic=True,
    )
    yield _row(
        "producer.id.expiration.ms",
        SettingType.INT,
        86_400_000,
        "Forget a producer that has written nothing for this long, along with the sequence numbers that detect its "
        "duplicates.",
        at_least(1),
        dynamic=True,
    )
    yield _row(
        "tidelog.max.producer.ids.per.partition",
        SettingType.INT,
        20_000,
        "Maximum number of producers that a partition remembers. Beyond that, it forgets the one that has been silent "
        "longest and has no open transaction; that producer can keep writing, but the broker no longer recognises a "
        "batch that it repeats. If all of them have open transactions, a new producer is refused with "
        "POLICY_VIOLATION. Kafka forgets producers only by time (producer.id.expiration.ms).",
        at_least(1),
    )
    yield _row(
        "tidelog.max.producer.ids",
        SettingType.INT,
        500_000,
        "Maximum number of producers that all partitions of the broker remember together, at about 200 bytes each. "
        "Beyond that, the partition with the most producers forgets those that have been silent longest.",
        at_least(1),
    )
    yield _row(
        "producer.id.expiration.check.interval.ms",
        SettingType.INT,
        600_000,
        "How often to look for producers that have expired.",
        at_least(1),
    )
    yield _row(
        "transaction.partition.verification.enable",
        SettingType.BOOLEAN,
        True,
        "Whether to ask the transaction coordinator before a transaction starts in a partition (KIP-890). Without "
        "this, a late retry from an aborted transaction can start one that nobody ends.",
        dynamic=True,
    )


def _replication_rows() -> Iterator[Setting]:
    yield _row(
        "replica.selector.class",
        SettingType.STRING,
        None,
        "How a leader chooses the replica that a consumer reads from. Without it, consumers read from the leader. With "
        "RackAwareReplicaSelector, a consumer that sets client.rack reads from a replica in sync whose broker.rack is "
        "the same, if there is one. Kafka takes any class that implements its interface.",
        one_of(RACK_AWARE_SELECTOR),
    )
    yield _row(
        "replica.lag.time.max.ms",
        SettingType.LONG,
        30_000,
        "Remove a follower from a partition's ISR when it has not caught up with the leader for this long.",
        at_least(1),
    )
    yield _row(
        "broker.session.timeout.ms",
        SettingType.INT,
        9_000,
        "Fence a broker that the metadata store shows as alive and that the controller has not heard of for this long. "
        "Others lead its partitions then.",
        at_least(1_000),
    )
    yield _row(
        "num.replica.fetchers",
        SettingType.INT,
        1,
        "Number of connections over which to copy partitions from each other broker.",
        at_least(1),
    )
    yield _row(
        "replica.fetch.wait.max.ms",
        SettingType.INT,
        500,
        "How long a leader may wait for new records before it answers a follower's fetch.",
        at_least(1),
    )
    yield _row(
        "replica.fetch.max.bytes",
        SettingType.INT,
        1_048_576,
        "How many bytes of one partition a follower fetches at a time. A larger batch is fetched nevertheless.",
        at_least(0),
    )
    yield _row(
        "replica.fetch.response.max.bytes",
        SettingType.INT,
        10_485_760,
        "How many bytes a follower fetches at a time from all partitions of one leader. This is about how much memory "
        "each fetcher takes.",
        at_least(0),
    )
    yield _row(
        "replica.fetch.backoff.ms",
        SettingType.INT,
        1_000,
        "How long a follower waits at most before it tries again to fetch a partition after an error.",
        at_least(0),
    )
    yield _row(
        "replica.socket.timeout.ms",
        SettingType.INT,
        30_000,
        "How long a follower waits for the answer of a leader before it connects again. Must be above "
        "replica.fetch.wait.max.ms.",
        at_least(1),
    )


def _throttle_rows() -> Iterator[Setting]:
    for side, what in (("leader", "sends to followers that are"), ("follower", "copies while it is")):
        yield _row(
            f"{side}.replication.throttled.rate",
            SettingType.LONG,
            _LONG_MAX,
            f"How many bytes per second a broker {what} not in sync, of all replicas together that topics name in "
            f"{side}.replication.throttled.replicas. `tidelog cluster reassign --throttle` sets both.",
            at_least(0),
            dynamic=True,
        )
    yield _row(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        SettingType.LONG,
        _LONG_MAX,
        "How many bytes per second the broker copies while it moves replicas between its data directories.",
        at_least(0),
        dynamic=True,
    )
    yield _row(
        "replication.quota.window.num",
        SettingType.INT,
        11,
        "Over how many samples the rate of throttled replication is measured.",
        at_least(1),
    )
    yield _row(
        "replication.quota.window.size.seconds",
        SettingType.INT,
        1,
        "How many seconds each of these samples covers.",
        at_least(1),
    )


def broker_rows() -> Iterator[Setting]:
    yield from _identity_rows()
    yield from _topic_creation_rows()
    yield from _leadership_rows()
    yield from _network_rows()
    yield from _log_rows()
    yield from _replication_rows()
    yield from _throttle_rows()
