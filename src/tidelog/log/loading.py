"""Opening many logs at a start, with as many threads for each data directory as are set, and telling how far it is.

What always holds: logs that must be read again are opened largest first, so that no large one is left for the end;
while it takes longer than a moment, a line every two seconds says how many logs and bytes are done. A log that can't be
opened gives its error and holds up no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from tidelog.common.light_dataclass import dataclass
from tidelog.log.errors import LogStorageError
from tidelog.log.partition_log import PartitionLog
from tidelog.log.recovery import LastKnown, RecoveryProgress, bytes_to_check

logger = logging.getLogger(__name__)

_REPORT_INTERVAL_S = 2.0
_MIB = 1024 * 1024


class Openable(Protocol):
    """A partition's directory that was found."""

    @property
    def path(self) -> Path: ...

    @property
    def known(self) -> LastKnown: ...


Item = TypeVar("Item", bound=Openable)


@dataclass(slots=True)
class _Job(Generic[Item]):
    item: Item
    size_bytes: int
    progress: RecoveryProgress = field(default_factory=RecoveryProgress)


def open_all(
    found: Sequence[Item], open_one: Callable[[Item, RecoveryProgress], PartitionLog], threads_per_directory: int
) -> Iterator[tuple[Item, PartitionLog | LogStorageError]]:
    """Every log with what became of it, as they get ready. Blocks; the threads are its own."""
    jobs = sorted((_Job(item, _size(item)) for item in found), key=lambda job: job.size_bytes, reverse=True)
    with ExitStack() as stack:
        pools = {
            parent: stack.enter_context(ThreadPoolExecutor(threads_per_directory, "log-recovery"))
            for parent in {job.item.path.parent for job in jobs}
        }
        pending = {pools[job.item.path.parent].submit(open_one, job.item, job.progress): job for job in jobs}
        # Asking thousands of futures again and again which are done would take longer than opening the logs.
        done: SimpleQueue[Future[PartitionLog]] = SimpleQueue()
        for future in pending:
            future.add_done_callback(done.put)
        report = _Report(jobs)
        while pending:
            with suppress(Empty):
                future = done.get(timeout=report.remaining_s())
                yield pending.pop(future).item, _result(future)
            report.tell_if_due(len(pending))


def _size(item: Openable) -> int:
    try:
        return bytes_to_check(item.path, item.known)
    except OSError:
        # What is wrong with it is reported when it is opened.
        return 0


def _result(future: Future[PartitionLog]) -> PartitionLog | LogStorageError:
    try:
        return future.result()
    except LogStorageError as error:
        return error


class _Report:
    """Lines about the progress, by the time that people wait and not by a clock that a test turns."""

    def __init__(self, jobs: Sequence[_Job[Item]]) -> None:
        self._jobs = jobs
        self._size_bytes = sum(job.size_bytes for job in jobs)
        self._due_s = time.monotonic() + _REPORT_INTERVAL_S

    def remaining_s(self) -> float:
        return max(0.0, self._due_s - time.monotonic())

    def tell_if_due(self, pending_count: int) -> None:
        if self.remaining_s():
            return
        self._due_s = time.monotonic() + _REPORT_INTERVAL_S
        done_bytes = sum(min(job.progress.bytes_done, job.size_bytes) for job in self._jobs)
        logger.info(
            "opened %d of %d logs, read %.1f of %.1f MiB that must be checked",
            len(self._jobs) - pending_count,
            len(self._jobs),
            done_bytes / _MIB,
            self._size_bytes / _MIB,
        )
