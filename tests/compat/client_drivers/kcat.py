"""kcat, Debian's: librdkafka 2.0 from the command line. It has no administration, so those steps are not its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence

from client_drivers.model import Headers, ProduceOptions, ReadRecord, SentRecord

WAIT_S = 60.0
# Characters that no record of the scenario holds.
KEY_END = b"\x1f"
END = b"\x1e"


class KcatDriver:
    name = "kcat"
    sets_timestamps = False
    sends_null_headers = True
    sends_empty_records = False
    has_transactions = False

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def produce(
        self, topic: str, partition: int, records: Sequence[SentRecord], options: ProduceOptions
    ) -> list[int | None]:
        for record in records:
            self._produce_one(topic, partition, record, options)
        return [None] * len(records)

    def _produce_one(self, topic: str, partition: int, record: SentRecord, options: ProduceOptions) -> None:
        arguments = ["-P", "-t", topic, "-p", str(partition), "-z", options.compression]
        arguments += ["-X", f"acks={options.acks}", "-X", f"enable.idempotence={str(options.idempotent).lower()}"]
        if record.value is None:
            arguments.append("-Z")
        content = (record.value or b"") + END
        if record.key is not None:
            arguments += ["-K", KEY_END.decode()]
            content = record.key + KEY_END + content
        for name, value in record.headers:
            # kcat writes a header without '=' with a null value; bytes of any kind are an argument to the system.
            arguments += ["-H", name if value is None else os.fsdecode(name.encode() + b"=" + value)]
        self._kcat([*arguments, "-D", END.decode()], content)

    def consume(
        self, topic: str, partition: int, offset: int, count: int, isolation: str | None = None
    ) -> list[ReadRecord]:
        # Lengths before the bytes: keys and values may hold anything.
        layout = "%o %T %K %S\n%k%s\n%h\n"
        arguments = ["-C", "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count), "-q", "-f", layout]
        if isolation is not None:
            arguments += ["-X", f"isolation.level={isolation}"]
        return _parse(self._kcat(arguments))

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        return self._query(topic, partition, -2), self._query(topic, partition, -1)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        found = self._query(topic, partition, timestamp_ms)
        return None if found < 0 else found

    def _query(self, topic: str, partition: int, timestamp: int) -> int:
        output = self._kcat(["-Q", "-t", f"{topic}:{partition}:{timestamp}"]).decode()
        found = re.search(r"offset (-?\d+)", output)
        assert found, output
        return int(found.group(1))

    def topics(self) -> dict[str, int]:
        listing = json.loads(self._kcat(["-L", "-J"]))
        return {row["topic"]: len(row["partitions"]) for row in listing["topics"]}

    def close(self) -> None:
        return None

    def _kcat(self, arguments: list[str], content: bytes = b"") -> bytes:
        done = subprocess.run(
            ["kcat", "-b", self._bootstrap, *arguments], input=content, capture_output=True, timeout=WAIT_S
        )
        assert done.returncode == 0, f"kcat {arguments}: {done.stderr.decode(errors='replace')}"
        return done.stdout


def _parse(output: bytes) -> list[ReadRecord]:
    records: list[ReadRecord] = []
    position = 0
    while position < len(output):
        end = output.index(b"\n", position)
        offset, timestamp_ms, key_length, value_length = map(int, output[position:end].split())
        position = end + 1
        key, position = _take(output, position, key_length)
        value, position = _take(output, position, value_length)
        end = output.index(b"\n", position + 1)
        headers = _headers(output[position + 1 : end])
        position = end + 1
        records.append(ReadRecord(offset, key, value, headers, timestamp_ms))
    return records


def _take(output: bytes, position: int, length: int) -> tuple[bytes | None, int]:
    if length < 0:
        return None, position
    return output[position : position + length], position + length


def _headers(raw: bytes) -> Headers:
    if not raw:
        return ()
    pairs = (item.partition(b"=") for item in raw.split(b","))
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)
