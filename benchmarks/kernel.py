"""Records per second through the kernel, compiled and interpreted, beside kafka-python's and aiokafka's codecs.

Run it with `.venv/bin/python benchmarks/kernel.py`; it takes ten seconds. Every figure is the best of several runs
over one batch of 100-byte values without keys, so it says what the code can do, not what a busy machine does.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

from tidelog.records import (
    Compression,
    codec,
    decode_records,
    encode_batch,
    kernel,
    kernel_is_compiled,
    parse_header,
    scan_records,
    view_records,
)
from tidelog.records.arrow import from_arrow, to_arrow

RECORDS_COUNT = 10_000
VALUE_SIZE = 100
RUNS = 20

RECORDS = [
    (None, bytes([65 + index % 26]) * VALUE_SIZE, (), 1_700_000_000_000 + index) for index in range(RECORDS_COUNT)
]


def best_seconds(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def report(what: str, call: Callable[[], object], records: int = RECORDS_COUNT) -> None:
    print(f"{what:<44} {records / best_seconds(call) / 1e6:8.2f} M records/s", flush=True)


def measure_objects(label: str) -> None:
    data = bytes(encode_batch(RECORDS))
    header = parse_header(data)
    report(f"encode_batch, {label}", lambda: encode_batch(RECORDS))
    report(f"decode_records, {label}", lambda: decode_records(data))
    opened = view_records(data, header)
    report(f"scan_records, {label}", lambda: scan_records(opened, header.records_count, header.base_timestamp, 0))


def measure_arrow() -> None:
    data = bytes(encode_batch(RECORDS))
    table = to_arrow(data, "topic", 0)
    report("to_arrow, one batch", lambda: to_arrow(data, "topic", 0))
    report("to_arrow, ten batches", lambda: to_arrow([data] * 10, "topic", 0), 10 * RECORDS_COUNT)
    report("from_arrow", lambda: from_arrow(table))
    for compression in (Compression.LZ4, Compression.ZSTD):
        packed = bytes(encode_batch(RECORDS, compression=compression))
        report(f"to_arrow, {compression.label}", lambda packed=packed: to_arrow(packed, "topic", 0))  # type: ignore[misc]  # a lambda's default has no type


def measure_others() -> None:
    from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
    from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

    def encode_with(builder: type) -> None:
        target = builder(2, 0, 0, -1, -1, -1, 1 << 24)
        for offset, (key, value, _, timestamp) in enumerate(RECORDS):
            target.append(offset, timestamp, key, value, [])
        target.build()

    data = bytes(encode_batch(RECORDS))
    report("encode, aiokafka (compiled)", lambda: encode_with(AiokafkaBuilder))
    report("decode, aiokafka (compiled)", lambda: list(AiokafkaBatch(data)))
    report("encode, kafka-python", lambda: encode_with(KafkaPythonBuilder))
    report("decode, kafka-python", lambda: list(KafkaPythonBatch(data)))


def interpreted_kernel() -> object:
    source = Path(codec.__file__).with_name("kernel.py")
    spec = importlib.util.spec_from_file_location("interpreted_kernel", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    if not kernel_is_compiled():
        raise SystemExit("the kernel is not compiled: run `python setup.py build_ext --inplace` first")
    print(f"{RECORDS_COUNT} records of {VALUE_SIZE} bytes a batch, best of {RUNS} runs")
    measure_objects("compiled")
    setattr(codec, "kernel", interpreted_kernel())  # noqa: B010  # mypy knows the module's attribute as the compiled one
    measure_objects("interpreted")
    setattr(codec, "kernel", kernel)  # noqa: B010
    measure_arrow()
    measure_others()


if __name__ == "__main__":
    main()
