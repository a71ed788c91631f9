"""A producer's counters, and the snapshot that `metrics()` returns."""

from __future__ import annotations

from tidelog.common.light_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """Totals since the producer was created. Times are in milliseconds, sizes uncompressed unless stated."""

    records_delivered: int
    records_failed: int
    records_retried: int
    records_per_s: float  # delivered records, per second since the first was sent
    batches_delivered: int
    batches_split: int
    batch_size_avg: float
    records_per_batch_avg: float
    bytes_delivered: int
    bytes_sent: int  # compressed, including resent batches
    compression_ratio: float  # of sent batches: compressed divided by uncompressed
    requests_sent: int
    requests_in_flight: int
    request_latency_ms_avg: float
    request_latency_ms_max: float
    queue_time_ms_avg: float  # from the first record of a batch to its sending
    queue_time_ms_max: float
    batches_waiting: int
    buffer_total_bytes: int
    buffer_available_bytes: int
    buffer_exhausted: int  # how often a send had to wait for room
    producer_id: int  # -1 without idempotence
    producer_epoch: int


class ProducerCounters:
    """The running counts. The sender updates them once per batch or request, never once per record."""

    __slots__ = (
        "batches_delivered",
        "batches_sent",
        "batches_split",
        "bytes_delivered",
        "bytes_sealed",
        "bytes_sent",
        "first_sent_ms",
        "latency_ms_max",
        "latency_ms_sum",
        "queue_ms_max",
        "queue_ms_sum",
        "records_delivered",
        "records_failed",
        "records_retried",
        "requests_answered",
        "requests_sent",
    )

    def __init__(self) -> None:
        self.records_delivered = 0
        self.records_failed = 0
        self.records_retried = 0
        self.batches_delivered = 0
        self.batches_sent = 0
        self.batches_split = 0
        self.bytes_delivered = 0
        self.bytes_sealed = 0
        self.bytes_sent = 0
        self.requests_sent = 0
        self.requests_answered = 0
        self.latency_ms_sum = 0.0
        self.latency_ms_max = 0.0
        self.queue_ms_sum = 0.0
        self.queue_ms_max = 0.0
        self.first_sent_ms: float | None = None

    def note_sent(self, size: int, sealed_size: int, queue_ms: float, now_ms: float) -> None:
        """A batch is sent."""
        if self.first_sent_ms is None:
            self.first_sent_ms = now_ms
        self.batches_sent += 1
        self.bytes_sealed += size
        self.bytes_sent += sealed_size
        self.queue_ms_sum += queue_ms
        self.queue_ms_max = max(self.queue_ms_max, queue_ms)

    def note_delivered(self, records: int, size: int) -> None:
        self.records_delivered += records
        self.batches_delivered += 1
        self.bytes_delivered += size

    def note_latency(self, latency_ms: float) -> None:
        self.requests_answered += 1
        self.latency_ms_sum += latency_ms
        self.latency_ms_max = max(self.latency_ms_max, latency_ms)


def per(total: float, count: int) -> float:
    """An average; 0 for no values."""
    return total / count if count else 0.0
