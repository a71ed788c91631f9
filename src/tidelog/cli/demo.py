"""`tidelog demo`: a broker, a topic, records written and read back, with what it took.

What always holds: the demo's own broker is a process as users start it, on a free port, with a temporary directory, and
both are gone when the command ends, however it ends; in a cluster that `--bootstrap` names only a topic is made, and
deleted again. Every record that was sent is compared with what is read. The figures are of this one client in Python
on this machine at this moment; `tidelog bench` measures.
"""

from __future__ import annotations

import re
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn, Self

import typer

from tidelog.cli.errors import CommandError
from tidelog.cli.options import Json, checked, connected
from tidelog.cli.output import print_json, print_line
from tidelog.cli.text import count_text, plural, size_text

if TYPE_CHECKING:
    from tidelog.client.cluster import Cluster
    from tidelog.records import Record

START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 10.0
TIMEOUT_S = 30.0
PARTITIONS = 3
VALUE_BYTES = 100
ROUND_TRIPS = 500
ROUND_TRIPS_SECONDS_MAX = 2.0
PROGRESS_EVERY_RECORDS = 2000

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PADDING = bytes(ord("a") + number % 26 for number in range(VALUE_BYTES))

# Takes the share that is done, 0 to 1, and the records so far.
Progress = Callable[[float, int], None]


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


def add_to(app: typer.Typer) -> None:
    app.command(epilog="Example: tidelog demo --seconds 5")(demo)


def demo(
    seconds: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How long to write records.")] = 2.0,
    bootstrap: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Use this broker instead of one of the demo's own."),
    ] = None,
    json: Json = False,
) -> None:
    """Start a broker, write records, read them back, compare, and say how fast it was.

    The broker is gone afterwards, with its data.
    """
    if bootstrap is not None:
        from tidelog.client.address import parse_addresses

        checked(parse_addresses, bootstrap, "--bootstrap")
    tell = _say_nothing if json else _say
    with _Interruption().caught() as interruption, ExitStack() as cleanup:
        place = _prepare(bootstrap, cleanup, interruption, tell)
        with connected(place.bootstrap, TIMEOUT_S) as cluster:
            round_trips, written = _produce(cluster, place.topic, seconds, interruption, tell)
            tell(f"wrote {written.text()}")
            read = _consume(cluster, place.topic, written.records + len(round_trips.latencies_ms), interruption)
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
    bootstrap: str | None, cleanup: ExitStack, interruption: _Interruption, tell: Callable[[str], None]
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

# Record N goes to partition N modulo PARTITIONS, so that what a partition must hold can be told without keeping it.


def _key(number: int) -> bytes:
    return b"key-%d" % (number % 1000)


def _value(number: int) -> bytes:
    digits = b"%012d " % number
    return digits + _PADDING[len(digits) :]


def _produce(
    cluster: Cluster, topic: str, seconds: float, interruption: _Interruption, tell: Callable[[str], None]
) -> tuple[RoundTrips, Throughput]:
    from tidelog.client.produce import Producer

    producer = Producer(cluster, idempotent=True, delivery_timeout_s=TIMEOUT_S)
    round_trips = RoundTrips()
    number = 0
    started_s = time.perf_counter()
    while number < ROUND_TRIPS and time.perf_counter() - started_s < ROUND_TRIPS_SECONDS_MAX:
        interruption.check()
        sent_s = time.perf_counter()
        producer.send(topic, _value(number), key=_key(number), partition=number % PARTITIONS)
        producer.flush()
        round_trips.latencies_ms.append((time.perf_counter() - sent_s) * 1000)
        number += 1
    _check_delivered(producer.delivery.first_error)
    tell(f"sent  {round_trips.text()}")
    before_records, before_bytes = producer.delivery.delivered_records, producer.delivery.delivered_bytes
    with _progress("writing") as advanced:
        started_s = time.perf_counter()
        deadline_s = started_s + seconds
        while time.perf_counter() < deadline_s:
            interruption.check()
            for _ in range(PROGRESS_EVERY_RECORDS):
                producer.send(topic, _value(number), key=_key(number), partition=number % PARTITIONS)
                number += 1
            advanced((time.perf_counter() - started_s) / seconds, number)
        producer.flush()
        took_s = time.perf_counter() - started_s
    _check_delivered(producer.delivery.first_error)
    delivery = producer.delivery
    return round_trips, Throughput(
        delivery.delivered_records - before_records, delivery.delivered_bytes - before_bytes, took_s
    )


def _check_delivered(error: Exception | None) -> None:
    if error is not None:
        raise CommandError(f"records could not be delivered: {error}")


def _consume(cluster: Cluster, topic: str, sent_records: int, interruption: _Interruption) -> Throughput:
    """Read everything and compare it; only the reading is timed."""
    from tidelog.client.consume import BEGINNING, Consumer
    from tidelog.client.types import TopicPartition

    consumer = Consumer(cluster)
    consumer.assign({TopicPartition(topic, partition): BEGINNING for partition in range(PARTITIONS)}, stop_at_end=True)
    read = Throughput()
    with _progress("reading") as advanced:
        while not consumer.is_done:
            interruption.check()
            polled_s = time.perf_counter()
            fetched = consumer.poll()
            read.seconds += time.perf_counter() - polled_s
            if fetched is None:
                continue
            read.payload_bytes += _compare(fetched.topic_partition.partition, fetched.records)
            read.records += len(fetched.records)
            advanced(read.records / sent_records, read.records)
    if read.records != sent_records:
        raise CommandError(f"{plural(sent_records, 'record')} were sent, {count_text(read.records)} came back")
    return read


def _compare(partition: int, records: list[Record]) -> int:
    """Hold records against what was sent; gives the bytes of their keys and values."""
    payload_bytes = 0
    for record in records:
        number = record.offset * PARTITIONS + partition
        key, value = record.key, record.value
        if key != _key(number) or value != _value(number):
            raise CommandError(f"the record at offset {record.offset} of partition {partition} is not what was sent")
        payload_bytes += len(key) + len(value)
    return payload_bytes


def _create_topic(bootstrap: str, topic: str) -> None:
    from tidelog.client.admin_calls import Admin
    from tidelog.client.admin_types import NewTopic

    with connected(bootstrap, TIMEOUT_S) as cluster:
        admin = Admin(cluster)
        (outcome,) = admin.create_topics([NewTopic(topic, PARTITIONS, -1, {})])
        if outcome.error is not None:
            raise outcome.error
        admin.wait_for_topic(topic)


def _delete_topic(bootstrap: str, topic: str) -> None:
    """On a connection of its own: the other may have been left in the middle of an answer."""
    from tidelog.client.admin_calls import Admin

    with connected(bootstrap, STOP_DEADLINE_S) as cluster:
        (outcome,) = Admin(cluster).delete_topics([topic])
        if outcome.error is not None:
            raise outcome.error


# The demo's own broker


@contextmanager
def _own_broker(interruption: _Interruption) -> Iterator[tuple[str, float]]:
    """A broker as `tidelog serve` starts it; gives its address and the seconds until it was ready."""
    with tempfile.TemporaryDirectory(prefix="tidelog-demo-", ignore_cleanup_errors=True) as directory:
        log = Path(directory) / "broker.log"
        started_s = time.perf_counter()
        with log.open("wb") as log_file:
            # In a session of its own, so that Ctrl-C reaches the demo alone, which then stops the broker.
            process = subprocess.Popen(
                [sys.executable, "-m", "tidelog", "serve", "--listen", "127.0.0.1:0", "--data", f"{directory}/data"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log_file,
                start_new_session=True,
            )
        try:
            bootstrap = _ready_address(process, interruption)
            if bootstrap is None:
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise CommandError(f"the broker did not start: {lines[-1] if lines else 'it said nothing'}")
            yield bootstrap, time.perf_counter() - started_s
        finally:
            _stop(process)


def _ready_address(process: subprocess.Popen[bytes], interruption: _Interruption) -> str | None:
    """The address in the line that a broker prints when it is ready; None when it ends or stays silent."""
    assert process.stdout is not None  # it was asked for
    deadline_s = time.monotonic() + START_DEADLINE_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not selector.select(0.1):
            interruption.check()
            if time.monotonic() > deadline_s:
                return None
    # The line is written at once, so that what is there is all of it.
    found = re.search(rb"ready on (\S+)", process.stdout.readline())
    return None if found is None else found[1].decode()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


class _Interruption:
    """Ctrl-C, SIGTERM and a closed terminal end the demo between two steps, when it is known what to clean up.

    An exception out of a signal handler may come up anywhere, even where Python drops it. A second signal does so.
    """

    def __init__(self) -> None:
        self._number: int | None = None

    def check(self) -> None:
        """Raise if the demo is to end."""
        if self._number is not None:
            self._raise(self._number)

    @contextmanager
    def caught(self) -> Iterator[Self]:
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None:
            self._raise(number)
        self._number = number

    def _raise(self, number: int) -> NoReturn:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)  # as a shell counts it


# What is shown


def _say(text: str) -> None:
    print(text, flush=True)


def _say_nothing(text: str) -> None:
    pass


@contextmanager
def _progress(action: str) -> Iterator[Progress]:
    """A progress display when a person watches; else nothing."""
    if not sys.stderr.isatty():
        yield lambda share, records: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Display

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Display(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(action, total=1.0)

        def advanced(share: float, records: int) -> None:
            display.update(task, completed=min(share, 1.0), description=f"{action} {records:,} records")

        yield advanced
