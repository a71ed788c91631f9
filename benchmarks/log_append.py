"""What an append to and a read from a partition's log cost, without network: microseconds an operation.

Run: python benchmarks/log_append.py [--directory DIR] [--seconds S]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tidelog.common.clock import SystemClock
from tidelog.common.ids import random_uuid
from tidelog.log import LogConfig, LogManager, PartitionLog
from tidelog.records import encode_batch

RECORD_BYTES = 100


def make_batch(records_count: int) -> bytearray:
    now_ms = SystemClock().now_ms()
    return encode_batch([(None, bytes(RECORD_BYTES), (), now_ms)] * records_count)


def measure(name: str, seconds: float, operation: Callable[[int], int]) -> None:
    """Repeat an operation that is given its number and says how many bytes it moved."""
    operation(0)
    started = time.perf_counter()
    deadline = started + seconds
    count = size_bytes = 0
    while time.perf_counter() < deadline:
        count += 1
        size_bytes += operation(count)
    elapsed = time.perf_counter() - started
    print(f"{name:40s} {elapsed / count * 1e6:10.1f} us/op {size_bytes / elapsed / 1e6:10.0f} MB/s")


def append(log: PartitionLog, batch: bytearray) -> int:
    log.append_as_leader(memoryview(batch), leader_epoch=0)
    return len(batch)


def read(log: PartitionLog, offset: int, max_bytes: int) -> int:
    found = log.read(offset, max_bytes, limit_offset=log.log_end_offset, min_one_batch=True)
    return found.size_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=None, help="where to write; a temporary directory by default")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to repeat each operation")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        manager = LogManager([Path(directory)], {}, SystemClock())
        manager.open("benchmark", 1)
        manager.load()
        small = manager.create("small", 0, random_uuid(), LogConfig())
        large = manager.create("large", 0, random_uuid(), LogConfig())
        one_record, one_megabyte = make_batch(1), make_batch(9_000)
        measure("append, one record", arguments.seconds, lambda _: append(small, one_record))
        measure("append, 1 MB", arguments.seconds, lambda _: append(large, one_megabyte))
        end = small.log_end_offset
        measure("read at the tail, one record", arguments.seconds, lambda _: read(small, end - 1, 1_048_576))
        measure("read anywhere, small batches", arguments.seconds, lambda n: read(small, n * 7919 % end, 1_048_576))
        end_large = large.log_end_offset
        measure(
            "read anywhere, 1 MB batches", arguments.seconds, lambda n: read(large, n * 7919 % end_large, 1_048_576)
        )
        manager.close(clean=False)


if __name__ == "__main__":
    main()
