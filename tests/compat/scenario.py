"""Plays scenario.json with one client family and holds every answer against a plain list of what was sent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from client_drivers.model import AdminDriver, ClientDriver, ProduceOptions, ReadRecord, SentRecord

SCENARIO: dict[str, Any] = json.loads((Path(__file__).parent / "scenario.json").read_text())
DEADLINE_S = 30.0


class Scenario:
    """The steps, in the order of the file. `admin` does the administration: the client itself wherever it can.

    `wait_until_known` returns when every broker knows that a topic has so many partitions: a client that asks one that
    doesn't yet takes the last ones for missing, and librdkafka then refuses records for them.
    """

    def __init__(
        self,
        client: ClientDriver,
        admin: AdminDriver,
        *,
        replicas: int,
        wait_until_known: Callable[[str, int], object],
    ) -> None:
        self._client = client
        self._admin = admin
        self._replicas = replicas
        self._wait_until_known = wait_until_known
        self._topic: str = SCENARIO["topic"]
        self._sent: dict[int, list[SentRecord]] = {}
        self._began_ms = time.time_ns() // 1_000_000

    def play(self) -> None:
        self._admin.create_topic(self._topic, SCENARIO["partitions"], SCENARIO["configs"], self._replicas)
        self._expect_partitions(SCENARIO["partitions"])
        for step in SCENARIO["produce"]:
            self._produce(step)
        for partition, sent in self._sent.items():
            self._read_back(partition, sent)
        self._look_up_times()
        self._change_settings()
        self._admin.grow_partitions(self._topic, SCENARIO["grow_to"])
        self._expect_partitions(SCENARIO["grow_to"])
        self._look_up_dated()
        self._delete_records()
        self._admin.delete_topic(self._topic)
        wait_until(lambda: self._topic not in self._client.topics(), "the deleted topic is still listed")

    def _expect_partitions(self, count: int) -> None:
        self._wait_until_known(self._topic, count)
        wait_until(
            lambda: self._client.topics().get(self._topic) == count, f"the topic never showed {count} partitions"
        )

    def _produce(self, step: Mapping[str, Any]) -> None:
        options = ProduceOptions(step["compression"], step["acks"], step.get("idempotent", False))
        partition: int = step["partition"]
        records = [_record(row, self._client) for row in SCENARIO["records"]]
        kept = self._sent.setdefault(partition, [])
        offsets = self._client.produce(self._topic, partition, records, options)
        for expected, offset in enumerate(offsets, start=len(kept)):
            assert offset in (None, expected), f"{options}: offset {offset} where {expected} was due"
        kept += records
        # Without acknowledgements the client may be ahead of the broker.
        wait_until(
            lambda: self._client.watermarks(self._topic, partition) == (0, len(kept)),
            f"{options}: partition {partition} never held {len(kept)} records",
        )

    def _read_back(self, partition: int, sent: list[SentRecord]) -> None:
        read = self._client.consume(self._topic, partition, 0, len(sent))
        for offset, (expected, found) in enumerate(zip(sent, read, strict=True)):
            self._compare(offset, expected, found)
        middle = len(sent) // 2
        (one,) = self._client.consume(self._topic, partition, middle, 1)
        self._compare(middle, sent[middle], one)

    def _compare(self, offset: int, expected: SentRecord, found: ReadRecord) -> None:
        assert found.offset == offset
        assert (found.key, found.value, found.headers) == (expected.key, expected.value, expected.headers)
        if expected.timestamp_ms is not None:
            assert found.timestamp_ms == expected.timestamp_ms
        else:
            assert self._began_ms <= found.timestamp_ms <= time.time_ns() // 1_000_000

    def _look_up_times(self) -> None:
        assert self._client.offset_for_time(self._topic, 0, self._began_ms) == 0
        assert self._client.offset_for_time(self._topic, 0, self._began_ms + 3_600_000) is None

    def _look_up_dated(self) -> None:
        """Timestamps that are not in order: the answer is the first offset whose time is late enough."""
        if not self._client.sets_timestamps:
            return
        partition: int = SCENARIO["dated"]["partition"]
        times: list[int] = SCENARIO["dated"]["timestamps_ms"]
        records = [SentRecord(None, b"dated", (), timestamp_ms) for timestamp_ms in times]
        self._client.produce(self._topic, partition, records, ProduceOptions())
        for asked in (0, *times, *(timestamp_ms + 1 for timestamp_ms in times)):
            expected = next((offset for offset, at_ms in enumerate(times) if at_ms >= asked), None)
            assert self._client.offset_for_time(self._topic, partition, asked) == expected, asked

    def _change_settings(self) -> None:
        for name, value in SCENARIO["configs"].items():
            assert self._admin.topic_config(self._topic, name) == value
        name, value = SCENARIO["alter"]["name"], SCENARIO["alter"]["value"]
        self._admin.alter_topic_config(self._topic, name, value)
        wait_until(lambda: self._admin.topic_config(self._topic, name) == value, f"{name} never became {value}")

    def _delete_records(self) -> None:
        before: int = SCENARIO["delete_records_before"]
        self._admin.delete_records(self._topic, 0, before)
        assert self._client.watermarks(self._topic, 0) == (before, len(self._sent[0]))
        (first,) = self._client.consume(self._topic, 0, before, 1)
        self._compare(before, self._sent[0][before], first)


def _record(row: Mapping[str, Any], client: ClientDriver) -> SentRecord:
    """The record as this client can send it."""
    value = _bytes(row["value"])
    headers = tuple((name, _bytes(text)) for name, text in row.get("headers", ()))
    if not client.sends_null_headers:
        headers = tuple((name, header) for name, header in headers if header is not None)
    return SentRecord(
        key=_bytes(row["key"]),
        value=None if value is None else value * row.get("repeat", 1),
        headers=headers,
        timestamp_ms=row.get("timestamp_ms") if client.sets_timestamps else None,
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.01)
