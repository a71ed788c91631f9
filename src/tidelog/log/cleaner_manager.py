"""The log cleaner: takes one dirty log after another, has a thread rewrite it, and swaps the results into the log.

What always holds: a log is cleaned by one thread at a time; a thread only reads segments and writes new files next to
them, and everything that changes a log happens on the event loop, between the thread's steps; after `abort` returns, no
thread touches that log's files. A damaged log is left as it is and logged once; a full disk is tried again later; any
other disk error takes the directory offline, as it does for appends. The map of keys exists only while a log is being
cleaned. It knows only the logs that the manager passes to it, and makes no decisions about retention.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from tidelog.common.clock import Clock
from tidelog.common.light_dataclass import dataclass
from tidelog.common.steps import with_pauses
from tidelog.log.checkpoints import PartitionKey, fsync_directory
from tidelog.log.cleaner_choice import LogToClean, first_dirty_offset, measure
from tidelog.log.cleaner_config import LogCleanerConfig
from tidelog.log.cleaner_io import Pace, SourceSegment, Throttle
from tidelog.log.cleaning import CleaningAbortedError, LogCleaning
from tidelog.log.errors import LogStorageError
from tidelog.log.health import is_out_of_room
from tidelog.log.partition_log import PartitionLog
from tidelog.log.scan import CorruptSegmentError
from tidelog.log.segment import Segment
from tidelog.log.swap_files import discard

if TYPE_CHECKING:
    from tidelog.log.cleaner import CleanedRun, CleanStats

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# A full disk is tried again, but not by reading the whole log every few seconds.
_RETRY_MS: Final = 60_000
_IO_BUFFER_BYTES_MIN: Final = 16 * 1024
_MIB: Final = 1024 * 1024


@dataclass(slots=True)
class CleanerTotals:
    """What was done since startup, and how the last compaction went."""

    cleans_count: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    duration_ms: float = 0.0
    last_duration_ms: float = 0.0
    last_map_utilization: float = 0.0
    dirty_ratio_max: float = 0.0  # of all logs, when they were last looked at
    delay_ms_max: int = 0  # beyond max.compaction.lag.ms


@dataclass(slots=True)
class _Running:
    """A log that is being cleaned."""

    log: PartitionLog
    cleaning: LogCleaning
    started_ms: float
    has_ended: threading.Event = field(default_factory=threading.Event)


class LogCleaner:
    """Compacts the logs of one broker."""

    def __init__(
        self,
        config: LogCleanerConfig,
        clock: Clock,
        logs: Callable[[], Sequence[PartitionLog]],
        find: Callable[[PartitionKey], PartitionLog | None],
        checkpoint: Callable[[], object],
    ) -> None:
        self.config = config
        self.totals = CleanerTotals()
        self._clock = clock
        self._logs = logs
        self._find = find
        self._checkpoint = checkpoint
        self._throttle = Throttle(config.io_max_bytes_per_second)
        self._threads: ThreadPoolExecutor | None = None
        self._is_stopped = False
        # Taken by the loop when a compaction starts and by `abort`, so that neither misses the other.
        self._guard = threading.Lock()
        self._running: dict[PartitionKey, _Running] = {}
        self._uncleanable: dict[PartitionKey, PartitionLog] = {}
        self._retry_at_ms: dict[PartitionKey, int] = {}
        # Logs that are being copied: a tombstone must not go before its copy has seen it.
        self._paused: set[PartitionKey] = set()

    @property
    def uncleanable(self) -> list[PartitionKey]:
        """Partitions that are no longer cleaned, because something in them is damaged."""
        return [key for key, log in self._uncleanable.items() if self._find(key) is log]

    def is_cleaning(self, log: PartitionLog) -> bool:
        return (log.topic, log.partition) in self._running

    async def run(self) -> None:
        """Clean logs until none is dirty enough. Each cleaner thread has one of these running."""
        while not self._is_stopped:
            running, chosen = await self._take_dirtiest()
            if running is None or chosen is None:
                break
            await self._clean(running, chosen)
        if self._threads is not None and not self._running:
            self._threads.shutdown(wait=False)
            self._threads = None

    def abort(self, log: PartitionLog) -> None:
        """Keep threads from touching the files of a log that was removed. Blocks; not for use on the event loop."""
        with self._guard:
            running = self._running.get((log.topic, log.partition))
        if running is not None and running.log is log:
            running.cleaning.abort()
            running.has_ended.wait()

    def pause(self, log: PartitionLog) -> None:
        """Leave a log as it is until `resume`. Blocks; not for use on the event loop."""
        with self._guard:
            self._paused.add((log.topic, log.partition))
        self.abort(log)

    def resume(self, log: PartitionLog) -> None:
        with self._guard:
            self._paused.discard((log.topic, log.partition))

    def stop(self) -> None:
        """Start no more compactions and end the running ones soon; `run` then returns."""
        self._is_stopped = True
        for running in list(self._running.values()):
            running.cleaning.abort()

    # Choosing

    async def _take_dirtiest(self) -> tuple[_Running | None, LogToClean | None]:
        """Start with the dirtiest log, if one is due."""
        due: list[LogToClean] = []
        self.totals.dirty_ratio_max = 0.0
        self.totals.delay_ms_max = 0
        async for log in with_pauses(self._logs()):
            measured = self._measure(log)
            if measured is not None:
                self.totals.dirty_ratio_max = max(self.totals.dirty_ratio_max, measured.dirty_ratio)
                self.totals.delay_ms_max = max(self.totals.delay_ms_max, measured.delay_ms)
                if measured.is_due:
                    due.append(measured)
        for candidate in sorted(due, key=lambda item: item.dirty_ratio, reverse=True):
            # Others have had their turn since it was measured.
            chosen = self._measure(candidate.log)
            running = None if chosen is None or not chosen.is_due else self._begin(chosen.log)
            if running is not None:
                return running, chosen
        return None, None

    def _measure(self, log: PartitionLog) -> LogToClean | None:
        key = log.topic, log.partition
        now_ms = self._clock.now_ms()
        if (
            not log.config.is_compacted
            or log.is_offline
            or log.is_truncating
            or (not log.is_open and log.segments_count == 1)
            or key in self._running
            or key in self._paused
            or self._uncleanable.get(key) is log
            or self._retry_at_ms.get(key, now_ms) > now_ms
        ):
            return None
        offset, problem = first_dirty_offset(log)
        if log.first_dirty_offset not in (None, offset):
            if problem is not None:
                logger.warning(
                    "%s is compacted again from offset %d: the checkpointed offset %d %s",
                    log.name,
                    offset,
                    log.first_dirty_offset,
                    problem,
                )
            log.first_dirty_offset = offset
        try:
            return measure(log, now_ms)
        except CorruptSegmentError as error:
            self._give_up(log, error)
        except OSError as error:
            self._fail(log, error)
        return None

    def _begin(self, log: PartitionLog) -> _Running | None:
        key = log.topic, log.partition
        with self._guard:
            if self._is_stopped or self._find(key) is not log or key in self._running or key in self._paused:
                return None
            running = _Running(log, log.start_cleaning(), self._clock.monotonic_ms())
            self._running[key] = running
        return running

    # Cleaning

    async def _clean(self, running: _Running, chosen: LogToClean) -> None:
        log, key = running.log, (running.log.topic, running.log.partition)
        has_outcome = False
        try:
            await self._rewrite(running, chosen)
            self._retry_at_ms.pop(key, None)
            has_outcome = True
        except CleaningAbortedError as error:
            logger.debug("compaction of %s was cut short: %s", log.name, error)
            has_outcome = True
        except CorruptSegmentError as error:
            has_outcome = True
            if not running.cleaning.is_aborted:
                self._give_up(log, error)
        except LogStorageError:
            # The log went offline and logged the reason.
            has_outcome = True
        except OSError as error:
            has_outcome = True
            if not running.cleaning.is_aborted:
                self._fail(log, error)
        finally:
            if not has_outcome:
                # Whatever it is would happen again, and keep the cleaner from getting to other logs.
                self._uncleanable[key] = log
            self._end(running)
        await self._in_thread(self._checkpoint)

    def _end(self, running: _Running) -> None:
        with self._guard:
            del self._running[running.log.topic, running.log.partition]
        with suppress(LogStorageError):  # it is offline then, and said why
            running.log.end_cleaning()
        running.has_ended.set()

    async def _rewrite(self, running: _Running, chosen: LogToClean) -> None:
        # Compiled, needed only by brokers with compacted topics, and too slow to load on the event loop.
        await self._in_thread(importlib.import_module, "tidelog.log.cleaner")
        from tidelog.log.cleaner import CleanTerms, RunCleaner, build_offset_map, make_offset_map

        log, config = running.log, self.config
        if log.first_dirty_offset is None:
            # From the first swap on the log has gaps; recovery after a crash must know why.
            log.first_dirty_offset = chosen.first_dirty_offset
            await self._in_thread(self._checkpoint)
        running.cleaning.check()
        segments = [segment for segment in log.segments if segment.base_offset < chosen.end_offset]
        # Also those after the end: the last segment may reach beyond it, and keeps its index.
        aborted = log.aborted_transactions(segments[0].base_offset, log.log_end_offset)
        terms = CleanTerms(
            directory=log.directory,
            config=log.config,
            now_ms=self._clock.now_ms(),
            chunk_bytes=max(config.io_buffer_size // config.threads // 2, _IO_BUFFER_BYTES_MIN),
            pace=Pace(self._throttle, running.cleaning),
            first_dirty_offset=chosen.first_dirty_offset,
            end_offset=chosen.end_offset,
            aborted=aborted,
        )
        sources = await self._in_thread(_describe, segments, chosen.end_offset)
        offset_map = await self._in_thread(
            make_offset_map,
            config.dedupe_buffer_size // config.threads,
            config.io_buffer_load_factor,
            chosen.end_offset - chosen.first_dirty_offset,
        )
        try:
            end_offset = await self._in_thread(build_offset_map, terms, sources, offset_map)
            run_cleaner = RunCleaner(terms, offset_map)
            sources = [source for source in sources if source.base_offset < end_offset]
            while sources:
                running.cleaning.check()
                write = functools.partial(run_cleaner.clean, sources, log.packed_producers())
                count = await self._replace_first(running, segments, write)
                segments, sources = segments[count:], sources[count:]
        finally:
            await self._in_thread(offset_map.clear, keys_max=1)
        running.cleaning.check()
        log.first_dirty_offset = end_offset
        self._tell(running, chosen, end_offset, terms.stats)

    async def _replace_first(
        self, running: _Running, segments: Sequence[Segment], write_cleaned: Callable[[], CleanedRun]
    ) -> int:
        """Replace the first few segments with what is left of them; returns how many.

        A thread writes and flushes that; the decisions and the swap happen here.
        """
        log, cleaning = running.log, running.cleaning
        base_offset, directory = segments[0].base_offset, log.directory
        try:
            run = await self._in_thread(write_cleaned)
            if run.is_changed:
                old = segments[: run.segments_count]
                await self._in_thread(fsync_directory, directory)
                log.decide_swap(cleaning, old)
                await self._in_thread(fsync_directory, directory)
                log.swap(cleaning, old, run.size_bytes)
                # What this removed must not come back without what follows, such as the end of a tombstone.
                await self._in_thread(fsync_directory, directory)
            else:
                await self._in_thread(discard, directory, base_offset)
        except (CleaningAbortedError, CorruptSegmentError, OSError):
            await self._in_thread(discard, directory, base_offset)
            raise
        return run.segments_count

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.config.threads, "log-cleaner")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(function, *args, **kwargs))

    # What a clean came to

    def _tell(self, running: _Running, chosen: LogToClean, end_offset: int, stats: CleanStats) -> None:
        duration_ms = self._clock.monotonic_ms() - running.started_ms
        totals = self.totals
        totals.cleans_count += 1
        totals.bytes_read += stats.bytes_mapped + stats.bytes_read
        totals.bytes_written += stats.bytes_written
        totals.duration_ms += duration_ms
        totals.last_duration_ms = duration_ms
        totals.last_map_utilization = stats.map_utilization
        logger.info(
            "compacted %s up to offset %d (dirty from %d): %.1f MiB in %d segments became %.1f MiB in %d, "
            "%d of %d records stay, in %.1f s with %.0f%% of the memory for keys%s",
            running.log.name,
            end_offset,
            chosen.first_dirty_offset,
            stats.bytes_read / _MIB,
            stats.segments_before,
            stats.bytes_written / _MIB,
            stats.segments_after,
            stats.records_written,
            stats.records_read,
            duration_ms / 1000,
            100 * stats.map_utilization,
            f"; {stats.keyless_records} records without a key were dropped" if stats.keyless_records else "",
        )

    def _give_up(self, log: PartitionLog, error: CorruptSegmentError) -> None:
        self._uncleanable[log.topic, log.partition] = log
        logger.error(
            "%s can no longer be compacted: %s at byte %d: %s; its records are served as they are. Restore the file, "
            "or delete the topic, and restart the broker",
            log.name,
            error.path,
            error.position,
            error.reason,
        )

    def _fail(self, log: PartitionLog, error: OSError) -> None:
        if not is_out_of_room(error):
            log.health.go_offline(f"compaction failed: {error}")
            return
        key = log.topic, log.partition
        if key not in self._retry_at_ms:
            logger.warning("%s is not compacted for now and stays as it is: %s; make room on the disk", log.name, error)
        self._retry_at_ms[key] = self._clock.now_ms() + _RETRY_MS


def _describe(segments: Sequence[Segment], end_offset: int) -> list[SourceSegment]:
    """The segments as files, for a thread that must not use the log itself."""
    next_offsets = [segment.base_offset for segment in segments[1:]] + [end_offset]
    return [
        SourceSegment(
            path=segment.path,
            base_offset=segment.base_offset,
            next_base_offset=next_offset,
            size_bytes=segment.size_bytes,
            index_bytes=_size(segment.offset_index.path),
            time_index_bytes=_size(segment.time_index.path),
        )
        for segment, next_offset in zip(segments, next_offsets, strict=True)
    ]


def _size(path: Path) -> int:
    """A missing index is rebuilt when it is needed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
