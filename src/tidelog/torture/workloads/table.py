"""A compacted table: whoever reads it from the beginning ends with the last value of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from tidelog.torture.workers import table_scanner, table_writer
from tidelog.torture.workers.table_scanner import TableScannerOrders
from tidelog.torture.workers.table_writer import TableWriterOrders
from tidelog.torture.workloads.driving import DrivenWorkload

_PARTITIONS: Final = 2
_WRITERS: Final = 2
_SCANNERS: Final = 2
_ROWS: Final = 200
_DELETE_RETENTION_S: Final = 60.0


class TableWorkload(DrivenWorkload):
    """Writers that put and delete rows, and scanners, on a topic that is compacted all the time."""

    name: ClassVar[str] = "table"
    about: ClassVar[str] = "puts and deletes in a compacted topic, and scans of it"
    default_rate: ClassVar[float] = 300.0

    def topics(self) -> Mapping[str, int]:
        return {self.topic(): _PARTITIONS}

    def topic_configs(self) -> Mapping[str, str]:
        return {
            "cleanup.policy": "compact",
            "segment.bytes": "1048576",  # the least that Kafka 4 takes
            "segment.ms": "3000",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "10000",
            "delete.retention.ms": f"{_DELETE_RETENTION_S * 1000:.0f}",
        }

    def add_posts(self) -> None:
        for number in range(_WRITERS):
            writing = TableWriterOrders(
                **self.common_orders(f"write-{number}"),
                topic=self.topic(),
                partitions=_PARTITIONS,
                rows=_ROWS,
                rate=self.place.rate / _WRITERS,
            )
            self.add_sender(self.python_post(writing, table_writer.__name__))
        for number in range(_SCANNERS):
            self.add_sender(self.python_post(self._scan(f"scan-{number}"), table_scanner.__name__))

    def read_finally(self) -> None:
        self.add_last_post(self.python_post(self._scan("final", is_last=True), table_scanner.__name__))
        self.wait_for_last_posts()

    def _scan(self, role: str, *, is_last: bool = False) -> TableScannerOrders:
        return TableScannerOrders(
            **self.common_orders(role),
            topic=self.topic(),
            partitions=_PARTITIONS,
            delete_retention_s=_DELETE_RETENTION_S,
            is_last=is_last,
        )
