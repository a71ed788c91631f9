"""The broker's settings for all logs together, with Kafka's defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Self

from tidelog.common.light_dataclass import dataclass
from tidelog.common.settings import SettingError, Settings
from tidelog.log.producer_limits import PER_PARTITION_MAX, TOTAL_MAX

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def setting(name: str, default: float | bool | None) -> Any:
    """A field of a dataclass that `values_of` fills from the setting of this name."""
    return field(default=default, metadata={"name": name})


def values_of(config: type[DataclassInstance], values: Settings | Mapping[str, object]) -> dict[str, Any]:
    """The value of each field from the broker's settings; without a row in the table, the field keeps its default."""
    taken: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        try:
            taken[item.name] = values[item.metadata["name"]]
        except (KeyError, SettingError):
            continue
    return taken


@dataclass(frozen=True, slots=True)
class LogManagerConfig:
    """Intervals and limits of the log manager."""

    recovery_threads: int = setting("num.recovery.threads.per.data.dir", 2)
    flush_scheduler_interval_ms: int = setting("log.flush.scheduler.interval.ms", 2**63 - 1)
    recovery_point_interval_ms: int = setting("log.flush.offset.checkpoint.interval.ms", 60_000)
    high_watermark_interval_ms: int = setting("replica.high.watermark.checkpoint.interval.ms", 5_000)
    producer_expiration_ms: int = setting("producer.id.expiration.ms", 86_400_000)
    producer_check_interval_ms: int = setting("producer.id.expiration.check.interval.ms", 600_000)
    producer_ids_per_partition_max: int = setting("tidelog.max.producer.ids.per.partition", PER_PARTITION_MAX)
    producer_ids_max: int = setting("tidelog.max.producer.ids", TOTAL_MAX)
    retention_check_interval_ms: int = setting("log.retention.check.interval.ms", 300_000)
    initial_task_delay_ms: int = setting("log.initial.task.delay.ms", 30_000)
    # None: as many as fit the process's own limit.
    max_open_files: int | None = setting("max.open.files", None)

    @classmethod
    def from_values(cls, values: Settings | Mapping[str, object]) -> Self:
        return cls(**values_of(cls, values))
