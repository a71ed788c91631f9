"""The settings of transactions and of the topic that their coordinators keep them in.

What always holds: as in `settings_rows_broker`, every row is read by some part of the broker; names and defaults are
Kafka's.
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
        "Partitions of __transaction_state when it is made; a transactional id belongs to one of them.",
    )
    yield _row(
        "transaction.state.log.replication.factor",
        SettingType.SHORT,
        3,
        between(1, 2**15 - 1),
        "Replicas of __transaction_state when it is made. A value that was set must be met, as in Kafka; the default "
        "is lowered to the number of live brokers, so that a single broker has transactions without any setting.",
    )
    yield _row(
        "transaction.state.log.min.isr",
        SettingType.INT,
        2,
        at_least(1),
        "min.insync.replicas of __transaction_state when it is made; the default is lowered to its number of replicas.",
    )
    yield _row(
        "transaction.state.log.segment.bytes",
        SettingType.INT,
        104_857_600,
        at_least(1),
        "Size at which a segment of __transaction_state is ended: smaller ones are compacted and loaded sooner.",
    )
    yield _row(
        "transaction.state.log.load.buffer.size",
        SettingType.INT,
        5_242_880,
        at_least(1),
        "Bytes of __transaction_state that are read at a time when its partitions are loaded.",
    )


def transaction_rows() -> Iterator[Setting]:
    yield from _topic_rows()
    yield _row(
        "transaction.max.timeout.ms",
        SettingType.INT,
        900_000,
        at_least(1),
        "Longest time that a producer may ask to have for a transaction: consumers that read committed records only "
        "wait for it.",
    )
    yield _row(
        "transactional.id.expiration.ms",
        SettingType.INT,
        604_800_000,
        at_least(1),
        "A transactional id that nobody used for this long, and that has no open transaction, is forgotten.",
    )
    yield _row(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        SettingType.INT,
        10_000,
        at_least(1),
        "How often open transactions are looked at; those that are past their time are aborted.",
    )
    yield _row(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        SettingType.INT,
        3_600_000,
        at_least(1),
        "How often transactional ids are looked at; those that nobody used for long are forgotten.",
    )
    yield _row(
        "transaction.two.phase.commit.enable",
        SettingType.BOOLEAN,
        False,
        None,
        "Whether producers may have transactions without a time-out, which a coordinator of their own decides "
        "(two-phase commit, KIP-939); read_committed consumers wait for those as long as it takes. Clients ask for "
        "them by a version of InitProducerId that is unstable: set unstable.api.versions.enable, too.",
    )
