"""The Java client: a small program of ours on kafka-clients, spoken to in JSON lines over its standard input."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client_drivers.model import ProduceOptions, ReadRecord, SentRecord


class JavaDriver:
    sets_timestamps = True
    sends_null_headers = True
    sends_empty_records = True
    has_transactions = True

    def __init__(self, bootstrap: str, jars: Path, version: str, error_log: Path) -> None:
        self.name = f"java-{version}"
        self._error_log = error_log.open("wb")
        self._process = subprocess.Popen(
            ["java", "-Xmx256m", "-cp", f"{jars}/*", "io.tidelog.compat.ScenarioDriver", bootstrap],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._error_log,
        )

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str], replicas: int = 1) -> None:
        self._call("create_topic", topic=topic, partitions=partitions, configs=configs, replicas=replicas)

    def produce(
        self, topic: str, partition: int, records: Sequence[SentRecord], options: ProduceOptions
    ) -> list[int | None]:
        sent = [
            {
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[name, _text(value)] for name, value in record.headers],
                "timestamp": record.timestamp_ms,
            }
            for record in records
        ]
        offsets = self._call(
            "produce",
            topic=topic,
            partition=partition,
            records=sent,
            compression=options.compression,
            acks=options.acks,
            idempotent=options.idempotent or options.transactional_id is not None,
            transactional_id=options.transactional_id,
            commits=options.commits,
            linger_ms=options.linger_ms,
        )
        return [None if offset < 0 else offset for offset in offsets]

    def consume(
        self, topic: str, partition: int, offset: int, count: int, isolation: str | None = None
    ) -> list[ReadRecord]:
        rows = self._call("consume", topic=topic, partition=partition, offset=offset, count=count, isolation=isolation)
        return [
            ReadRecord(
                row["offset"],
                _raw(row["key"]),
                _raw(row["value"]),
                tuple((name, _raw(value)) for name, value in row["headers"]),
                row["timestamp"],
            )
            for row in rows
        ]

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        low, high = self._call("watermarks", topic=topic, partition=partition)
        return low, high

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        found: int | None = self._call("offset_for_time", topic=topic, partition=partition, timestamp=timestamp_ms)
        return found

    def partitions_of_keys(self, keys: Sequence[bytes], counts: Sequence[int]) -> list[list[int]]:
        """Where the client's own partitioner sends these keys, for each of these numbers of partitions."""
        found: list[list[int]] = self._call("partitions_of_keys", keys=[_text(key) for key in keys], counts=counts)
        return found

    def topic_config(self, topic: str, name: str) -> str:
        return str(self._call("topic_config", topic=topic, name=name))

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        self._call("alter_topic_config", topic=topic, name=name, value=value)

    def grow_partitions(self, topic: str, count: int) -> None:
        self._call("grow_partitions", topic=topic, count=count)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._call("delete_records", topic=topic, partition=partition, before=before)

    def delete_topic(self, topic: str) -> None:
        self._call("delete_topic", topic=topic)

    def topics(self) -> dict[str, int]:
        found: dict[str, int] = self._call("topics")
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._error_log.close()

    def _call(self, step: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": step, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the Java driver ended; its errors are in {self._error_log.name}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _raw(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
