"""How fast batches are compacted, and how late the event loop is while a thread does it.

Each figure is the best of many runs over one batch of 10,000 records with keys of 16 and values of 100 bytes, half of
them random; megabytes are those of the records before compression. The loop's lateness is that of 1 ms timers.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable

from tidelog.records import Compression, encode_batch, kernel_is_compiled, parse_header
from tidelog.records.compaction import OffsetMap, filter_batch, map_batch

RECORDS_COUNT = 10_000
RUNS = 30
LATENESS_SECONDS = 2.0
END_OFFSET = 2**62

GENERATOR = random.Random(1)
RECORDS = [
    (b"key-%012d" % index, GENERATOR.randbytes(50) + b"v" * 50, (), 1_700_000_000_000 + index)
    for index in range(RECORDS_COUNT)
]
UNCOMPRESSED_BYTES = len(encode_batch(RECORDS))


def best_seconds(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def report(what: str, call: Callable[[], object]) -> None:
    seconds = best_seconds(call)
    rate = UNCOMPRESSED_BYTES / seconds / 1e6
    print(f"{what:<44} {rate:7.0f} MB/s {seconds / RECORDS_COUNT * 1e9:7.0f} ns a record", flush=True)


def map_of_every(step: int) -> OffsetMap:
    """A map in which one key in so many was written later, so that its earlier record goes."""
    offset_map = OffsetMap(128 * 1024 * 1024)
    for index in range(0, RECORDS_COUNT, step):
        offset_map.put(b"key-%012d" % index, RECORDS_COUNT + index)
    offset_map.update_latest_offset(2 * RECORDS_COUNT)
    return offset_map


def filtering(data: bytes, offset_map: OffsetMap) -> Callable[[], object]:
    header = parse_header(data)
    return lambda: filter_batch(data, header, 0, offset_map, now_ms=0, delete_retention_ms=0)


def measure_speed(compression: Compression) -> None:
    data = bytes(encode_batch(RECORDS, compression=compression))
    header = parse_header(data)
    offset_map = OffsetMap(128 * 1024 * 1024)
    name = compression.label
    report(f"map_batch, {name}", lambda: map_batch(offset_map, data, header, start_offset=0, end_offset=END_OFFSET))
    report(f"filter_batch, {name}, all stay", filtering(data, offset_map))
    report(f"filter_batch, {name}, half stay", filtering(data, map_of_every(2)))
    report(f"filter_batch, {name}, none stay", filtering(data, map_of_every(1)))


async def lateness_ms() -> list[float]:
    late = []
    end = time.perf_counter() + LATENESS_SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append((time.perf_counter() - start) * 1e3 - 1)
    return sorted(late)


def measure_lateness(what: str, work: Callable[[], object] | None) -> None:
    is_over = threading.Event()

    def work_on() -> None:
        while work is not None and not is_over.is_set():
            work()

    thread = threading.Thread(target=work_on)
    thread.start()
    late = asyncio.run(lateness_ms())
    is_over.set()
    thread.join()
    print(
        f"event loop late by, {what:<24} p50 {late[len(late) // 2]:6.2f}, p99 {late[len(late) * 99 // 100]:6.2f}, "
        f"most {late[-1]:6.2f} ms",
        flush=True,
    )


def main() -> None:
    if not kernel_is_compiled():
        raise SystemExit("the kernel is not compiled: run `python setup.py build_ext --inplace` first")
    print(f"{RECORDS_COUNT} records, {UNCOMPRESSED_BYTES} bytes a batch, best of {RUNS} runs")
    for compression in Compression:
        measure_speed(compression)
    measure_lateness("no cleaning", None)
    for compression in Compression:
        data = bytes(encode_batch(RECORDS, compression=compression))
        measure_lateness(f"filtering {compression.label}", filtering(data, map_of_every(2)))


if __name__ == "__main__":
    main()
