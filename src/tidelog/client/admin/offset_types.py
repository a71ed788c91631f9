"""What calls about offsets and records take and give."""

from __future__ import annotations

import datetime
import enum
from typing import Literal, NamedTuple


class OffsetSpec(enum.IntEnum):
    """Offsets that are asked for by name instead of a timestamp, with their numbers in ListOffsets."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3  # of the record with the largest timestamp
    EARLIEST_LOCAL = -4  # the first that is on a broker's own disk
    LATEST_TIERED = -5  # the last that is in remote storage


EARLIEST_TIMESTAMP = int(OffsetSpec.EARLIEST)
LATEST_TIMESTAMP = int(OffsetSpec.LATEST)
MAX_TIMESTAMP = int(OffsetSpec.MAX_TIMESTAMP)

TimeOrSpec = int | datetime.datetime | OffsetSpec
"""Milliseconds since 1970, a datetime with a time zone, or one of the special offsets."""

IsolationLevel = Literal["read_uncommitted", "read_committed"]


class ListedOffset(NamedTuple):
    """An answer to ListOffsets; offset and timestamp are -1 when no record fits."""

    offset: int
    timestamp: int
    leader_epoch: int


class DeletedRecords(NamedTuple):
    """What is left of a partition: its first offset."""

    low_watermark: int
