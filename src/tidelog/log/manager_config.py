"""The broker's settings that concern all logs together, with Kafka's defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.common.settings import SettingError, Settings


def _setting(name: str, default: int) -> Any:
    return field(default=default, metadata={"name": name})


@dataclass(frozen=True, slots=True)
class LogManagerConfig:
    """Intervals and limits of the log manager."""

    recovery_threads: int = _setting("num.recovery.threads.per.data.dir", 2)
    flush_scheduler_interval_ms: int = _setting("log.flush.scheduler.interval.ms", 2**63 - 1)
    recovery_point_interval_ms: int = _setting("log.flush.offset.checkpoint.interval.ms", 60_000)
    high_watermark_interval_ms: int = _setting("replica.high.watermark.checkpoint.interval.ms", 5_000)
    producer_expiration_ms: int = _setting("producer.id.expiration.ms", 86_400_000)
    producer_check_interval_ms: int = _setting("producer.id.expiration.check.interval.ms", 600_000)

    @classmethod
    def from_values(cls, values: Settings | Mapping[str, object]) -> LogManagerConfig:
        """What the broker's settings say; a table that lacks a row leaves the default."""
        taken: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            try:
                taken[item.name] = values[item.metadata["name"]]
            except (KeyError, SettingError):
                continue
        return cls(**taken)
