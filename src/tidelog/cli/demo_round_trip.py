"""`tidelog demo --quick`: a broker, a topic, records written and read back, with what it took.

What always holds: the demo's own broker is a process as users start it, on a free port, with a temporary directory, and
both are gone when the command ends, however it ends; in a cluster that `--bootstrap` names only a topic is made, and
deleted again. Every record that was sent is compared with what is read. The figures are of this one client in Python
on this machine at this moment; `tidelog bench` measures.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.cli.errors import CommandError
from tidelog.cli.options import administration, checked, client_options
from tidelog.cli.output import print_json, print_line
from tidelog.cli.progress import is_watched, progress
from tidelog.cli.text import count_text, plural, size_text
from tidelog.common.interruption import Interruption
from tidelog.demo.processes import STOP_DEADLINE_S, DemoError, Processes

if TYPE_CHECKING:
    from tidelog.client.producer.producer import Producer
    from tidelog.client.types import RecordMetadata
    from tidelog.records.kernel_consume import ConsumerRecord

TIMEOUT_S = 30.0
PARTITIONS = 3
VALUE_BYTES = 100
ROUND_TRIPS = 500
ROUND_TRIPS_SECONDS_MAX = 2.0
PROGRESS_EVERY_RECORDS = 2000
BATCH_BYTES = 256 * 1024
RECORDS_AT_ONCE = 5000
POLL_S = 0.2

_PADDING = bytes(ord("a") + number % 26 for number in range(VALUE_BYTES))


@dataclass(slots=True)
class Throughput:
    records: int = 0
    payload_bytes: int = 0  # keys and values
    seconds: float = 0.0

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds > 0 else 0.0

    @property
    def megabytes_per_second(self) -> float:
        return self.payload_bytes / 1e6 / self.seconds if self.seconds > 0 else 0.0

    def text(self) -> str:
        return (
            f"{plural(self.records, 'record')} ({size_text(self.payload_bytes)}) in {self.seconds:.2f} s: "
            f"{count_text(round(self.records_per_second))} records/s, {self.megabytes_per_second:.1f} MB/s"
        )

    def document(self) -> dict[str, object]:
        return {
            "records": self.records,
            "bytes": self.payload_bytes,
            "seconds": round(self.seconds, 4),
            "records_per_second": round(self.records_per_second),
            "megabytes_per_second": round(self.megabytes_per_second, 2),
        }


@dataclass(slots=True)
class RoundTrips:
    latencies_ms: list[float] = field(default_factory=list)

    def percentile_ms(self, percent: int) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0

    def text(self) -> str:
        return (
            f"{plural(len(self.latencies_ms), 'record')}, each acknowledged before the next: "
            f"p50 {self.percentile_ms(50):.2f} ms, p99 {self.percentile_ms(99):.2f} ms"
        )

    def document(self) -> dict[str, object]:
        return {
            "count": len(self.latencies_ms),
            "p50_ms": round(self.percentile_ms(50), 3),
            "p99_ms": round(self.percentile_ms(99), 3),
        }


def show_round_trip(seconds: float, bootstrap: str | None, *, json: bool) -> None:
    """Write for so long to a broker of the demo's own, or to the one that is named."""
    if bootstrap is not None:
        from tidelog.client.address import parse_addresses

        checked(parse_addresses, bootstrap, "--bootstrap")
    tell = _say_nothing if json else _say
    with Interruption().caught() as interruption, ExitStack() as cleanup:
        place = _prepare(bootstrap, cleanup, interruption, tell)
        round_trips, written = _produce(place, seconds, interruption, tell)
        tell(f"wrote {written.text()}")
        read = _consume(place, written.records + len(round_trips.latencies_ms), interruption)
        tell(f"read  {read.text()}")
        tell(f"compared: all {count_text(read.records)} records came back as sent, in order")
    if json:
        print_json(
            {
                "bootstrap": place.bootstrap,
                "topic": place.topic,
                "partitions": PARTITIONS,
                "start_seconds": place.start_seconds,
                "round_trips": round_trips.document(),
                "produce": written.document(),
                "consume": read.document(),
                "verified": True,
            }
        )
    else:
        print_line("Everything is cleaned up. Next: tidelog serve")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the demo takes place."""

    bootstrap: str
    topic: str
    start_seconds: float | None = None  # of the demo's own broker


def _prepare(
    bootstrap: str | None, cleanup: ExitStack, interruption: Interruption, tell: Callable[[str], None]
) -> _Place:
    if bootstrap is None:
        own_bootstrap, start_seconds = cleanup.enter_context(_own_broker(interruption))
        tell(f"started a broker on {own_bootstrap} in {start_seconds:.2f} s")
        place = _Place(own_bootstrap, "demo", round(start_seconds, 3))
        _create_topic(own_bootstrap, place.topic)
    else:
        place = _Place(bootstrap, f"demo-{secrets.token_hex(4)}")
        _create_topic(bootstrap, place.topic)
        cleanup.callback(_delete_topic, bootstrap, place.topic)
    tell(f"created topic {place.topic} with {plural(PARTITIONS, 'partition')}")
    return place


# Writing and reading

# Record N goes to partition N modulo PARTITIONS, so that what a partition must hold is known without keeping it.


def _key(number: int) -> bytes:
    return b"key-%d" % (number % 1000)


def _value(number: int) -> bytes:
    digits = b"%012d " % number
    return digits + _PADDING[len(digits) :]


class _Deliveries:
    """The first error of a delivery, reported on the producer's own thread."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __call__(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        self.error = self.error or error

    def check(self) -> None:
        if self.error is not None:
            raise CommandError(f"records could not be delivered: {self.error}")


def _produce(
    place: _Place, seconds: float, interruption: Interruption, tell: Callable[[str], None]
) -> tuple[RoundTrips, Throughput]:
    from tidelog.client.producer.producer import Producer

    deliveries = _Deliveries()
    with Producer(**client_options(place.bootstrap, TIMEOUT_S), batch_size=BATCH_BYTES) as producer:
        round_trips = _round_trips(producer, place.topic, interruption)
        tell(f"sent  {round_trips.text()}")
        number = first = len(round_trips.latencies_ms)
        with progress("writing", seconds, shown=is_watched()) as advance:
            started_s = time.perf_counter()
            while time.perf_counter() - started_s < seconds:
                interruption.check()
                deliveries.check()
                for _ in range(PROGRESS_EVERY_RECORDS):
                    producer.send(
                        place.topic,
                        _value(number),
                        _key(number),
                        partition=number % PARTITIONS,
                        on_delivery=deliveries,
                    )
                    number += 1
                advance(time.perf_counter() - started_s, f"writing {number:,} records")
            producer.flush()
            took_s = time.perf_counter() - started_s
    deliveries.check()
    payload_bytes = sum(len(_key(sent)) for sent in range(first, number)) + (number - first) * VALUE_BYTES
    return round_trips, Throughput(number - first, payload_bytes, took_s)


def _round_trips(producer: Producer, topic: str, interruption: Interruption) -> RoundTrips:
    """Records that are acknowledged one by one."""
    round_trips = RoundTrips()
    started_s = time.perf_counter()
    for number in range(ROUND_TRIPS):
        interruption.check()
        sent_s = time.perf_counter()
        if sent_s - started_s >= ROUND_TRIPS_SECONDS_MAX:
            break
        sent = producer.send(topic, _value(number), _key(number), partition=number % PARTITIONS)
        producer.flush()  # it does not wait for more records to go with this one
        sent.result()
        round_trips.latencies_ms.append((time.perf_counter() - sent_s) * 1000)
    return round_trips


def _consume(place: _Place, sent_records: int, interruption: Interruption) -> Throughput:
    """Read everything and compare it; only the reading is timed."""
    from tidelog.client.consumer.consumer import Consumer
    from tidelog.client.types import TopicPartition

    read = Throughput()
    with Consumer(
        **client_options(place.bootstrap, TIMEOUT_S), auto_offset_reset="earliest", max_poll_records=RECORDS_AT_ONCE
    ) as consumer:
        consumer.assign([TopicPartition(place.topic, partition) for partition in range(PARTITIONS)])
        idle_since_s = time.perf_counter()
        with progress("reading", sent_records, shown=is_watched()) as advance:
            while read.records < sent_records:
                interruption.check()
                polled_s = time.perf_counter()
                records = consumer.poll(POLL_S)
                read.seconds += time.perf_counter() - polled_s
                if records:
                    idle_since_s = time.perf_counter()
                elif time.perf_counter() - idle_since_s > TIMEOUT_S:
                    break
                read.payload_bytes += _compare(records)
                read.records += len(records)
                advance(read.records, f"reading {read.records:,} records")
    if read.records != sent_records:
        raise CommandError(f"{plural(sent_records, 'record')} were sent, {count_text(read.records)} came back")
    return read


def _compare(records: list[ConsumerRecord]) -> int:
    """Hold records against what was sent; gives the bytes of their keys and values."""
    payload_bytes = 0
    for record in records:
        number = record.offset * PARTITIONS + record.partition
        key, value = record.key, record.value
        if key != _key(number) or value != _value(number):
            raise CommandError(
                f"the record at offset {record.offset} of partition {record.partition} is not what was sent"
            )
        payload_bytes += len(key) + len(value)
    return payload_bytes


def _create_topic(bootstrap: str, topic: str) -> None:
    from tidelog.client.admin import NewTopic

    with administration(bootstrap, TIMEOUT_S) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS)]).raise_for_errors()
        admin.wait_for_topics(topic)


def _delete_topic(bootstrap: str, topic: str) -> None:
    with administration(bootstrap, STOP_DEADLINE_S) as admin:
        admin.delete_topics(topic).raise_for_errors()


@contextmanager
def _own_broker(interruption: Interruption) -> Iterator[tuple[str, float]]:
    """A broker as `tidelog serve` starts it; gives its address and the seconds until it was ready."""
    with tempfile.TemporaryDirectory(prefix="tidelog-demo-", ignore_cleanup_errors=True) as directory:
        processes = Processes(Path(directory), interruption)
        try:
            _, bootstrap, start_seconds = processes.start_broker(Path(directory) / "data")
            yield bootstrap, start_seconds
        except DemoError as error:
            raise CommandError(str(error)) from None
        finally:
            processes.stop_all()


# What is shown


def _say(text: str) -> None:
    print(text, flush=True)


def _say_nothing(text: str) -> None:
    pass
