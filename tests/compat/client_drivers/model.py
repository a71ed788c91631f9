"""What a driver must be able to do, and the records it hands to and fro."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class SentRecord:
    """A record as the scenario wants it sent; without a timestamp the client takes its own."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as a client gave it back."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    compression: str = "none"
    acks: str = "all"
    idempotent: bool = False
    # The records are one transaction of this id, which is committed or aborted.
    transactional_id: str | None = None
    commits: bool = True
    # How long a batch waits for more records; None: as long as the client does by itself.
    linger_ms: int | None = None


class ClientDriver(Protocol):
    """One client family, reading and writing."""

    name: str
    # Whether a record's own timestamp can be given; kcat has no way to.
    sets_timestamps: bool
    # Whether a header may be sent without a value; kafka-python refuses to.
    sends_null_headers: bool
    # Whether a record may have neither key nor value; kcat and the Python clients refuse to.
    sends_empty_records: bool
    # Whether it can produce in transactions; kcat has none.
    has_transactions: bool

    def produce(
        self, topic: str, partition: int, records: Sequence[SentRecord], options: ProduceOptions
    ) -> list[int | None]:
        """Offsets of the records; None where the client is not told (acks=0, or it has no way to say)."""
        ...

    def consume(
        self, topic: str, partition: int, offset: int, count: int, isolation: str | None = None
    ) -> list[ReadRecord]:
        """Exactly `count` records by assignment, from that offset; with the client's own isolation level or another."""
        ...

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]: ...

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset at or after that time; None when there is none."""
        ...

    def topics(self) -> dict[str, int]:
        """Topic names with their partition counts."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class AdminDriver(Protocol):
    """What most families can do as well."""

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str], replicas: int = 1) -> None: ...

    def topic_config(self, topic: str, name: str) -> str: ...

    def alter_topic_config(self, topic: str, name: str, value: str) -> None: ...

    def grow_partitions(self, topic: str, count: int) -> None: ...

    def delete_records(self, topic: str, partition: int, before: int) -> None: ...

    def delete_topic(self, topic: str) -> None: ...
