"""What the codec of the protocol costs: import, first use, and a fetch request of 15 partitions beside kafka-python's.

python benchmarks/protocol_codec.py
"""

from __future__ import annotations

import subprocess
import sys
import timeit
from collections.abc import Callable
from time import perf_counter
from typing import Any

from kafka.protocol.consumer import FetchRequest as KafkaPythonFetchRequest

from tidelog.protocol import decode, encode
from tidelog.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic

_SERVED = (0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 18, 19, 20, 21, 22, 23, 32, 37, 44)
_IMPORT = f"""
import time, tidelog.protocol
start = time.perf_counter()
for key in {_SERVED}: tidelog.protocol.api_by_key(key)
print((time.perf_counter() - start) * 1e3)
"""
_PARTITIONS = 15
_VERSION = 12  # the newest that kafka-python writes
_CALLS = 5000


def microseconds(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=_CALLS, repeat=5)) / _CALLS * 1e6


def milliseconds_once(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return (perf_counter() - start) * 1e3


def _kafka_python_request(request: FetchRequest) -> Any:
    topic_class = KafkaPythonFetchRequest.FetchTopic
    topics = []
    for topic in request.topics:
        partitions = [
            topic_class.FetchPartition(
                partition=partition.partition,
                current_leader_epoch=partition.current_leader_epoch,
                fetch_offset=partition.fetch_offset,
                last_fetched_epoch=partition.last_fetched_epoch,
                log_start_offset=partition.log_start_offset,
                partition_max_bytes=partition.partition_max_bytes,
            )
            for partition in topic.partitions
        ]
        topics.append(topic_class(topic=topic.topic, partitions=partitions))
    return KafkaPythonFetchRequest(max_wait_ms=request.max_wait_ms, min_bytes=request.min_bytes, topics=topics)


def main() -> None:
    runs = [subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, check=True) for _ in range(5)]
    imported = min(float(run.stdout) for run in runs)
    print(f"import of {len(_SERVED)} APIs: {imported:.1f} ms")

    partitions = [
        FetchPartition(partition=number, fetch_offset=number * 1000, partition_max_bytes=1 << 20)
        for number in range(_PARTITIONS)
    ]
    ours = FetchRequest(max_wait_ms=500, topics=[FetchTopic(topic="events", partitions=partitions)])
    print(f"first encode, compiling: {milliseconds_once(lambda: encode(ours, _VERSION)):.2f} ms")
    data = encode(ours, _VERSION)
    print(f"first decode, compiling: {milliseconds_once(lambda: decode(FetchRequest, data, _VERSION)):.2f} ms")

    theirs = _kafka_python_request(ours)
    if theirs.encode(version=_VERSION) != data:
        raise SystemExit("kafka-python writes other bytes: the figures would compare two different things")
    for name, our_call, their_call in (
        ("encode", lambda: encode(ours, _VERSION), lambda: theirs.encode(version=_VERSION)),
        (
            "decode",
            lambda: decode(FetchRequest, data, _VERSION),
            lambda: KafkaPythonFetchRequest.decode(data, version=_VERSION),
        ),
    ):
        mine, other = microseconds(our_call), microseconds(their_call)
        print(f"{name} {_PARTITIONS} partitions: {mine:.1f} us, kafka-python {other:.1f} us, ratio {other / mine:.1f}")


if __name__ == "__main__":
    main()
