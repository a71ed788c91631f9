"""A topic's settings as the log reads them: one field a setting, typed, with Kafka's defaults.

What always holds: a LogConfig never changes; a topic whose settings were altered is given a new one. Names are the
settings' own with '.' turned to '_', so that `from_values` needs no table of its own. It does not parse text: values
come typed from the settings table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FOREVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one topic that its logs obey."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = "producer"
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = FOREVER
    flush_ms: int = FOREVER
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = FOREVER
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = FOREVER
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> LogConfig:
        """The config of typed values by setting name; names that the log does not read are left aside."""
        taken: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            name = field.name.replace("_", ".")
            if name in values:
                taken[field.name] = values[name]
        if "cleanup_policy" in taken:
            taken["cleanup_policy"] = _policies(taken["cleanup_policy"])
        return cls(**taken)

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """For how long a segment may be appended to: what is in the active one can't be compacted."""
        if self.is_compacted and self.max_compaction_lag_ms > 0:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def opens_batches(self) -> bool:
        """Whether appending may mean to open a batch, instead of writing it as it came."""
        return self.is_compacted or self.compression_type != "producer"

    @property
    def uses_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def compression_level(self) -> int | None:
        """The level for the codec that the broker itself would compress with; None lets the codec choose."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)


def _policies(value: str | Iterable[str]) -> frozenset[str]:
    words = value.split(",") if isinstance(value, str) else value
    return frozenset(word.strip() for word in words)
