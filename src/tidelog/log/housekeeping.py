"""What is done for all logs now and then: flushes, checkpoints, rolls, retention, removal of files.

What always holds: it runs on the event loop, in turns with everything else, and whatever waits for the disk runs in a
thread; files of deleted segments are renamed only when it is written down where their log starts, and unlinked only
after `file.delete.delay.ms`; a log that fails does not keep the others waiting. When a task runs is up to the broker's
scheduler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.common.clock import Clock
from tidelog.common.light_dataclass import dataclass
from tidelog.common.steps import with_pauses
from tidelog.log.config import FOREVER
from tidelog.log.errors import LogStorageError
from tidelog.log.flush_together import flush_together
from tidelog.log.manager_config import LogManagerConfig
from tidelog.log.open_files import OPEN_FILES
from tidelog.log.retention import delete_expired

if TYPE_CHECKING:
    from tidelog.log.manager import LogManager
    from tidelog.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

# How often the loop looks whether rolled segments wait for their flush or removed files for their end.
_HOUSEKEEPING_INTERVAL_MS = 1_000
_ROLL_CHECK_INTERVAL_MS = 10_000
# File systems flush some files at once about as fast as one. Flushes that producers wait for have their own threads.
_FLUSH_THREADS = 8


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """Recurring work, for the broker's scheduler."""

    name: str
    interval_ms: float
    run: Callable[[], Awaitable[None]]
    # When it runs for the first time; None: after the interval.
    first_after_ms: float | None = None


class Housekeeping:
    """The recurring work on the logs of one broker."""

    def __init__(self, manager: LogManager, config: LogManagerConfig, clock: Clock) -> None:
        self._manager = manager
        self._config = config
        self._clock = clock

    def tasks(self) -> list[BackgroundTask]:
        """What the broker's scheduler should run, and how often."""
        config = self._config
        # Kafka never looks when the interval is not set, so that a topic's flush.ms alone has no effect there.
        is_set = config.flush_scheduler_interval_ms < FOREVER
        flush_interval_ms = config.flush_scheduler_interval_ms if is_set else _HOUSEKEEPING_INTERVAL_MS
        return [
            BackgroundTask("flush logs", flush_interval_ms, self._flush_due),
            BackgroundTask("flush rolled segments", _HOUSEKEEPING_INTERVAL_MS, self._flush_rolled),
            BackgroundTask("checkpoint recovery points", config.recovery_point_interval_ms, self._checkpoint),
            BackgroundTask(
                "checkpoint high watermarks", config.high_watermark_interval_ms, self._checkpoint_watermarks
            ),
            BackgroundTask("roll segments", _ROLL_CHECK_INTERVAL_MS, self._roll_due),
            BackgroundTask(
                "delete expired segments",
                config.retention_check_interval_ms,
                self._delete_expired,
                first_after_ms=config.initial_task_delay_ms,
            ),
            BackgroundTask("remove deleted files", _HOUSEKEEPING_INTERVAL_MS, self._remove_due),
            BackgroundTask("close unused files", _HOUSEKEEPING_INTERVAL_MS, self._close_unused),
            BackgroundTask("expire producers", config.producer_check_interval_ms, self._expire_producers),
        ]

    async def _checkpoint(self) -> None:
        await asyncio.to_thread(self._manager.checkpoint)

    async def _checkpoint_watermarks(self) -> None:
        await asyncio.to_thread(self._manager.checkpoint_high_watermarks)

    async def _flush_due(self) -> None:
        now_ms = self._clock.now_ms()
        logs = with_pauses(self._manager.open_logs())
        await self._flush_all([log async for log in logs if now_ms - log.last_flush_ms >= log.config.flush_ms])

    async def _flush_rolled(self) -> None:
        await self._flush_all(log for log in self._manager.logs_with_work_behind() if log.has_unflushed_segments)

    async def _flush_all(self, logs: Iterable[PartitionLog]) -> None:
        due = [log for log in logs if log.has_unflushed and not log.is_offline]
        if due:
            await asyncio.to_thread(self._flush, due)

    def _flush(self, logs: Sequence[PartitionLog]) -> None:
        for directory in self._manager.directories.online:
            here = [log for log in logs if log.parent == directory.path]
            if here and not flush_together(directory, here):
                _flush_side_by_side(here)

    async def _roll_due(self) -> None:
        now_ms = self._clock.now_ms()
        async for log in with_pauses(self._manager.logs()):
            if log.is_offline:
                continue
            try:
                log.maybe_roll(now_ms)
            except LogStorageError as error:
                # A disk that fails says so for its whole directory; on a full one the old segment stays in use.
                if not log.is_offline:
                    logger.warning("%s", error.message)

    async def _delete_expired(self) -> None:
        await delete_expired(self._manager.logs(), self._clock.now_ms())

    async def _remove_due(self) -> None:
        now_ms = self._clock.now_ms()
        logs = self._manager.logs_with_work_behind()
        if any(log.has_dropped_segments for log in logs):
            await asyncio.to_thread(self._manager.rename_dropped_segments)
        paths = [path for log in logs for path in log.take_removed_paths(now_ms)]
        paths += self._manager.take_doomed_paths(now_ms)
        if paths:
            await asyncio.to_thread(_remove_all, paths)

    async def _close_unused(self) -> None:
        if OPEN_FILES.is_over_limit:
            await asyncio.to_thread(OPEN_FILES.trim)
        for path, error in OPEN_FILES.take_failures(directory.path for directory in self._manager.directories):
            # As when a flush fails: the kernel may have dropped what was acknowledged.
            self._manager.directories.fail(path.parent.parent, f"{path} can't be flushed: {error}")

    async def _expire_producers(self) -> None:
        now_ms = self._clock.now_ms()
        async for log in with_pauses(self._manager.open_logs()):
            log.remove_expired_producers(now_ms, self._manager.producer_expiration_ms)


def _flush_side_by_side(logs: Sequence[PartitionLog]) -> None:
    with ThreadPoolExecutor(min(_FLUSH_THREADS, len(logs)), "log-flush") as threads:
        for _ in threads.map(_flush, logs):
            pass


def _flush(log: PartitionLog) -> None:
    try:
        log.flush()
    except LogStorageError:
        # What took the log offline has said so, with the directory and what to do.
        return


def _remove_all(paths: Iterable[Path]) -> None:
    import shutil

    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
