"""The settings of transactions and of the topic that their coordinators keep them in.

What always holds: as in `settings_rows_broker`, every row is read by some part of the broker; names and defaults are
Kafka's, except for those that start with `tidelog.`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.common.settings import Check, Setting, SettingType, at_least, between


def _row(name: str, kind: SettingType, default: int, check: Check | None, help_text: str) -> Setting:
    return Setting(name, kind, default, help_text, check=check)


def _topic_rows() -> Iterator[Setting]:
    yield _row(
        "transaction.state.log.num.partitions",
        SettingType.INT,
        50,
        at_least(1),
        "Number of partitions of __transaction_state when it is created. A transactional id determines its partition.",
    )
    yield _row(
        "transaction.state.log.replication.factor",
        SettingType.SHORT,
        3,
        between(1, 2**15 - 1),
        "Replication factor of __transaction_state when it is created. A value that you set must be met, as in Kafka; "
        "the default is reduced to the number of live brokers, so transactions work on a single broker without "
        "configuration.",
    )
    yield _row(
        "transaction.state.log.min.isr",
        SettingType.INT,
        2,
        at_least(1),
        "min.insync.replicas of __transaction_state when it is created; the default is reduced to its replication "
        "factor.",
    )
    yield _row(
        "transaction.state.log.segment.bytes",
        SettingType.INT,
        104_857_600,
        at_least(1),
        "Segment size of __transaction_state. Smaller segments are compacted and loaded sooner.",
    )
    yield _row(
        "transaction.state.log.load.buffer.size",
        SettingType.INT,
        5_242_880,
        at_least(1),
        "How many bytes of __transaction_state to read at a time when loading transactions.",
    )


def transaction_rows() -> Iterator[Setting]:
    yield from _topic_rows()
    yield _row(
        "transaction.max.timeout.ms",
        SettingType.INT,
        900_000,
        at_least(1),
        "Longest transaction timeout that a producer can request; read_committed consumers have to wait for open "
        "transactions.",
    )
    yield _row(
        "transactional.id.expiration.ms",
        SettingType.INT,
        604_800_000,
        at_least(1),
        "Forget a transactional id that has been unused for this long and has no open transaction.",
    )
    yield _row(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        SettingType.INT,
        10_000,
        at_least(1),
        "How often to look for transactions that have timed out, and abort them.",
    )
    yield _row(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        SettingType.INT,
        3_600_000,
        at_least(1),
        "How often to look for transactional ids that have expired.",
    )
    yield _row(
        "tidelog.transaction.coordinator.max.bytes",
        SettingType.LONG,
        128 * 1024 * 1024,
        at_least(1),
        "Maximum memory for all transactional ids and their open transactions. Beyond that, producers with new ids get "
        "COORDINATOR_NOT_AVAILABLE and retry, and ids that had no transaction within ten minutes of their first use "
        "are forgotten.",
    )
    yield _row(
        "transaction.two.phase.commit.enable",
        SettingType.BOOLEAN,
        False,
        None,
        "Whether producers can have transactions without a timeout, decided by an external coordinator (two-phase "
        "commit, KIP-939). read_committed consumers wait for them however long that takes. Clients request them with "
        "an unstable version of InitProducerId, so set unstable.api.versions.enable as well.",
    )
