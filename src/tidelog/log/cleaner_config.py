"""The broker's settings for log compaction, with Kafka's defaults."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Self

from tidelog.common.light_dataclass import dataclass
from tidelog.common.settings import Settings
from tidelog.log.manager_config import setting, values_of


@dataclass(frozen=True, slots=True)
class LogCleanerConfig:
    """Threads, memory and speed of the log cleaner; per-topic settings are in LogConfig."""

    enable: bool = setting("log.cleaner.enable", True)
    threads: int = setting("log.cleaner.threads", 1)
    # Together for all threads.
    dedupe_buffer_size: int = setting("log.cleaner.dedupe.buffer.size", 134_217_728)
    io_buffer_size: int = setting("log.cleaner.io.buffer.size", 524_288)
    io_buffer_load_factor: float = setting("log.cleaner.io.buffer.load.factor", 0.9)
    io_max_bytes_per_second: float = setting("log.cleaner.io.max.bytes.per.second", sys.float_info.max)
    backoff_ms: int = setting("log.cleaner.backoff.ms", 15_000)

    @classmethod
    def from_values(cls, values: Settings | Mapping[str, object]) -> Self:
        return cls(**values_of(cls, values))
