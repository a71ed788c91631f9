"""Sending a burst of records with our producer, and what became of each of them.

What always holds: a record counts as stored only if its future says so; as certainly not stored only if `send` itself
refused it. Whatever else a future reports, the record may be stored: a batch that was refused for good in the end may
have been stored by an attempt before, whose response was lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidelog.client.errors import ClientError, RequestTimeoutError
from tidelog.client.producer.futures import DeliveryFuture
from tidelog.client.producer.producer import Producer
from tidelog.torture.history import FAIL, OK, UNKNOWN
from tidelog.torture.workers.worker import PATIENCE_S, Worker, describe

VALUE = b"%d"


class StuckClientError(Exception):
    """A client that gave no answer long after its own time-outs: a mistake in the client."""


@dataclass(slots=True)
class Part:
    """The records of a burst to one partition that ended in the same way."""

    key: str
    outcome: str
    error: str
    values: list[int] = field(default_factory=list)
    offsets: list[int | None] = field(default_factory=list)

    def event(self) -> list[Any]:
        return ["send", self.key, self.values, self.offsets]

    def event_of_attempt(self) -> list[Any]:
        """Without the offsets, where another attempt may send the same values."""
        return ["send", self.key, self.values, [None] * len(self.values)]


@dataclass(slots=True)
class Sent:
    """Records handed to the producer, partition by partition, not waited for yet."""

    partition: int
    values: list[int]
    futures: list[DeliveryFuture]
    refused: list[int]
    refusal: ClientError | None


def send(producer: Producer, topic: str, burst: Mapping[int, Sequence[int]]) -> list[Sent]:
    """Hand the values over, by partition; a record that is refused is not the end of it."""
    sent = []
    for partition, values in burst.items():
        futures: list[DeliveryFuture] = []
        refusal: ClientError | None = None
        for at, value in enumerate(values):
            try:
                futures.append(producer.send(topic, VALUE % value, partition=partition))
            except ClientError as error:
                # Those after it would only wait as long for the same.
                refusal = error
                sent.append(Sent(partition, list(values[:at]), futures, list(values[at:]), refusal))
                break
        else:
            sent.append(Sent(partition, list(values), futures, [], None))
    return sent


def announcement(topic: str, burst: Mapping[int, Sequence[int]]) -> list[list[Any]]:
    """A burst as it is noted before anything is known of it."""
    return [["send", f"{topic}-{partition}", [*values], [None] * len(values)] for partition, values in burst.items()]


def outcome_of(future: DeliveryFuture, patience_s: float) -> tuple[int | None, ClientError | None]:
    """The offset of a record that is stored, if the broker told it, or the error."""
    error = future.exception(patience_s)
    if error is None:
        offset = future.result().offset
        return (offset if offset >= 0 else None), None
    if isinstance(error, RequestTimeoutError) and not future.done():
        raise StuckClientError(f"a record was neither stored nor failed within {patience_s:g} s: {error}")
    return None, error


def wait(topic: str, sent: Iterable[Sent], delivery_timeout_s: float) -> list[Part]:
    """Wait for the ends of all these records, and sort them by outcome."""
    parts: list[Part] = []
    for one in sent:
        parts += _parts(f"{topic}-{one.partition}", one, delivery_timeout_s + PATIENCE_S)
    return parts


def _parts(key: str, sent: Sent, patience_s: float) -> Iterator[Part]:
    found: dict[tuple[str, str], Part] = {}
    for value, future in zip(sent.values, sent.futures, strict=True):
        offset, error = outcome_of(future, patience_s)
        of_kind = (OK, "") if error is None else (UNKNOWN, type(error).__name__)
        part = found.get(of_kind)
        if part is None:
            part = found[of_kind] = Part(key, of_kind[0], describe(error) if error is not None else "")
        part.values.append(value)
        part.offsets.append(offset)
    if sent.refused:
        found[FAIL, ""] = Part(key, FAIL, describe(sent.refusal), sent.refused, [None] * len(sent.refused))
    yield from found.values()


def failures(sent: Iterable[Sent]) -> Iterator[ClientError]:
    """The errors of records that were waited for, and of refused ones."""
    for one in sent:
        if one.refusal is not None:
            yield one.refusal
        for future in one.futures:
            error = future.exception(0)
            if error is not None:
                yield error


def note_parts(worker: Worker, start_ns: int, parts: Sequence[Part], f: str = "send") -> None:
    """An operation for each outcome that occurred, all from the same start to the same end."""
    end_ns = time.monotonic_ns()
    by_outcome: dict[str, list[Part]] = {}
    for part in parts:
        by_outcome.setdefault(part.outcome, []).append(part)
    for outcome, alike in by_outcome.items():
        errors = dict.fromkeys(part.error for part in alike if part.error)
        worker.note(f, outcome, start_ns, [part.event() for part in alike], "; ".join(errors), end_ns)
        worker.count(outcome, sum(len(part.values) for part in alike))
