"""A topic's settings as the log uses them: one typed field per setting, with Kafka's defaults.

What always holds: a LogConfig is immutable; a topic whose settings are altered gets a new one. Fields are named after
the settings, with '_' for '.', so `from_values` needs no table. It does not parse text: values come typed from the
settings table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tidelog.common.light_dataclass import dataclass

FOREVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one topic that apply to its logs."""

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
    tidelog_records_check: str = "full"
    unclean_leader_election_enable: bool = False
    # What every append would otherwise work out again.
    is_compacted: bool = dataclasses.field(init=False)
    # How long a segment may stay active: the active segment can't be compacted.
    max_segment_ms: int = dataclasses.field(init=False)
    # Whether the records that clients send are checked one by one.
    checks_records: bool = dataclasses.field(init=False)
    # Whether the broker checks the records of a batch before it appends it, not only the header.
    opens_batches: bool = dataclasses.field(init=False)
    uses_log_append_time: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        is_compacted = "compact" in self.cleanup_policy
        is_bounded = is_compacted and self.max_compaction_lag_ms > 0
        checks_records = self.tidelog_records_check != "none"
        derived: dict[str, object] = {
            "is_compacted": is_compacted,
            "max_segment_ms": min(self.segment_ms, self.max_compaction_lag_ms) if is_bounded else self.segment_ms,
            "checks_records": checks_records,
            "opens_batches": checks_records or is_compacted or self.compression_type != "producer",
            "uses_log_append_time": self.message_timestamp_type == "LogAppendTime",
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> LogConfig:
        """The config from typed values by setting name; settings that the log does not use are ignored."""
        taken: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            name = field.name.replace("_", ".")
            if name in values:
                taken[field.name] = values[name]
        if "cleanup_policy" in taken:
            taken["cleanup_policy"] = _policies(taken["cleanup_policy"])
        return cls(**taken)

    @property
    def compression_level(self) -> int | None:
        """The level for the codec that the broker itself compresses with; None lets the codec choose."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)


def _policies(value: str | Iterable[str]) -> frozenset[str]:
    words = value.split(",") if isinstance(value, str) else value
    return frozenset(word.strip() for word in words)
