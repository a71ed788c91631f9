"""All logs of a broker: opening them at start, making and deleting them, keeping their checkpoints, closing them.

What always holds: a log is known once by topic and partition; a partition whose files are corrupt is known as offline
and can neither be read nor made anew, while all others serve; the clean-shutdown marker is written last, after
everything it vouches for. Logs are made and deleted by one thread at a time, which need not be the event loop's;
methods that block say so, the others are called on the event loop. It decides nothing about leaders.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tidelog.common.checks import partition_of_directory
from tidelog.common.clock import Clock
from tidelog.common.settings import Settings
from tidelog.log.checkpoints import PartitionKey, fsync_directory, read_partition_metadata
from tidelog.log.config import LogConfig
from tidelog.log.directory import LogDirectory
from tidelog.log.errors import CorruptCheckpointError, DataDirectoryError, LogStorageError
from tidelog.log.manager_config import LogManagerConfig
from tidelog.log.partition_log import PartitionLog
from tidelog.log.recovery import LastKnown, create_log, open_log
from tidelog.protocol import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_FILE_NAME_BYTES_MAX = 255
_PROGRESS_INTERVAL_MS = 2_000
# How often the loop looks whether rolled segments wait for their flush or removed files for their end.
_HOUSEKEEPING_INTERVAL_MS = 1_000
_ROLL_CHECK_INTERVAL_MS = 10_000
# Closing waits for the disk, not for a processor, and file systems flush many files at once about as fast as one.
_CLOSE_THREADS = 16


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """Recurring work, for the broker's scheduler."""

    name: str
    interval_ms: float
    run: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Found:
    """A partition's directory at start."""

    key: PartitionKey
    path: Path
    known: LastKnown


class LogManager:
    """The logs in the data directories of one broker."""

    def __init__(self, log_dirs: Sequence[Path], values: Settings | Mapping[str, object], clock: Clock) -> None:
        self._config = LogManagerConfig.from_values(values)
        self._clock = clock
        self._directories = {path: LogDirectory(path) for path in map(Path, log_dirs)}
        self._logs: dict[PartitionKey, PartitionLog] = {}
        self._logs_count: Counter[Path] = Counter()
        self._offline: dict[PartitionKey, tuple[LogStorageError, _Found]] = {}
        # Deleted partitions that the checkpoint files may still name; a new log of that name must not inherit them.
        self._stale: set[PartitionKey] = set()
        self._doomed: list[tuple[int, Path]] = []
        self._doomed_guard = threading.Lock()
        # Data directories in which deletions were made that are not flushed.
        self._unflushed: set[Path] = set()
        self.was_clean_shutdown = False

    @property
    def directories(self) -> list[LogDirectory]:
        return list(self._directories.values())

    @property
    def offline_partitions(self) -> dict[PartitionKey, LogStorageError]:
        return {key: error for key, (error, _) in self._offline.items()}

    def logs(self) -> list[PartitionLog]:
        return list(self._logs.values())

    # Starting

    def open(self, cluster_id: str, node_id: int) -> None:
        """Lock the directories and check whose they are; raises DataDirectoryError with what to do about it."""
        locked: list[LogDirectory] = []
        try:
            for directory in self.directories:
                directory.lock()
                locked.append(directory)
                directory.identify(cluster_id, node_id)
        except BaseException:
            for directory in locked:
                directory.unlock()
            raise

    def load(self, configs: Mapping[str, LogConfig] | None = None) -> None:
        """Open all logs that the directories hold, checking them as far as needed. Blocks; uses threads of its own.

        A log that can't be opened is offline; raises DataDirectoryError when a directory as a whole can't be read.
        """
        found: list[_Found] = []
        self.was_clean_shutdown = True
        for directory in self.directories:
            try:
                is_clean = directory.take_clean_marker()
                found += self._find(directory, is_clean=is_clean)
            except OSError as error:
                raise DataDirectoryError(f"can't use the data directory {directory.path}: {error}") from error
            self.was_clean_shutdown &= is_clean
        if not found:
            return
        started_ms = reported_ms = self._clock.monotonic_ms()
        with ThreadPoolExecutor(self._config.recovery_threads, "log-recovery") as threads:
            pending = {threads.submit(self._open_log, item, configs or {}): item for item in found}
            for done, future in enumerate(as_completed(pending), start=1):
                item = pending[future]
                try:
                    self._logs[item.key] = future.result()
                    self._logs_count[item.path.parent] += 1
                except LogStorageError as error:
                    self._offline[item.key] = error, item
                    logger.error("%s", error.message)
                if self._clock.monotonic_ms() - reported_ms > _PROGRESS_INTERVAL_MS:
                    reported_ms = self._clock.monotonic_ms()
                    logger.info("loaded %d of %d logs", done, len(found))
        logger.info(
            "loaded %d logs in %.0f ms after a%s shutdown, %d offline",
            len(self._logs),
            self._clock.monotonic_ms() - started_ms,
            " clean" if self.was_clean_shutdown else "n unclean",
            len(self._offline),
        )

    def _find(self, directory: LogDirectory, *, is_clean: bool) -> Iterable[_Found]:
        known = directory.last_known(is_clean=is_clean)
        for entry in os.scandir(directory.path):
            if not entry.is_dir():
                continue
            if entry.name.endswith(DELETE_SUFFIX):
                self._doom(self._clock.now_ms(), Path(entry.path))
                continue
            if entry.name.endswith(STRAY_SUFFIX):
                logger.warning("%s was set aside earlier; delete it when it is not needed", _as_text(entry.path))
                continue
            key = partition_of_directory(entry.name)
            if key is None:
                logger.warning("%s is no partition's directory and is left alone", _as_text(entry.path))
                continue
            yield _Found(key, Path(entry.path), known.get(key, LastKnown(is_clean=is_clean)))

    def _open_log(self, item: _Found, configs: Mapping[str, LogConfig]) -> PartitionLog:
        topic, partition = item.key
        try:
            topic_id = read_partition_metadata(item.path)
            config = configs.get(topic) or LogConfig()
            return open_log(topic, partition, item.path, topic_id, config, self._clock, item.known)
        except (OSError, CorruptCheckpointError) as error:
            raise LogStorageError(f"partition {topic}-{partition} can't be opened: {error}") from error

    # Logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The log, if there is one; raises LogStorageError when its files are there but not usable."""
        key = topic, partition
        log = self._logs.get(key)
        if log is None and key in self._offline:
            raise self._offline[key][0]
        return log

    def create(self, topic: str, partition: int, topic_id: uuid.UUID, config: LogConfig) -> PartitionLog:
        """Make a new log; raises LogStorageError when the disk does not let it. Blocks."""
        key = topic, partition
        if self.get(topic, partition) is not None:
            raise ValueError(f"{topic}-{partition} exists")
        directory = self._choose_directory()
        try:
            if key in self._stale and not self.checkpoint():
                raise LogStorageError(
                    f"partition {topic}-{partition} can't be created while checkpoints name the old one"
                )
            log = create_log(topic, partition, directory.path / f"{topic}-{partition}", topic_id, config, self._clock)
        except OSError as error:
            raise LogStorageError(f"partition {topic}-{partition} can't be created: {error}") from error
        self._logs[key] = log
        self._logs_count[directory.path] += 1
        if directory.offline_reason is not None:
            # It went offline while the log was made, and may have been looked for in vain.
            log.take_offline(directory.offline_reason)
        return log

    def get_or_create(self, topic: str, partition: int, topic_id: uuid.UUID, config: LogConfig) -> PartitionLog:
        """The log with these settings; one that belongs to another topic of the same name is refused. Blocks."""
        log = self.get(topic, partition)
        if log is None:
            return self.create(topic, partition, topic_id, config)
        if log.topic_id is None:
            log.assign_topic_id(topic_id)
        elif log.topic_id != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{log.name} has topic id {log.topic_id}, expected {topic_id}"
            )
        log.update_config(config)
        return log

    def _choose_directory(self) -> LogDirectory:
        online = self._online()
        if not online:
            raise LogStorageError("all data directories are offline")
        return min(online, key=lambda directory: self._logs_count[directory.path])

    def delete(self, topic: str, partition: int) -> None:
        """Take a log out at once; its files go after file.delete.delay.ms, and those who read it are not disturbed.

        Blocks. `flush_deletions` makes sure that a power cut does not bring them back.
        """
        log = self._logs.get((topic, partition))
        target = self._take_out(topic, partition, DELETE_SUFFIX)
        if target is not None:
            self._unflushed.add(target.parent)
            delay_ms = log.config.file_delete_delay_ms if log is not None else 0
            self._doom(self._clock.now_ms() + delay_ms, target)

    def flush_deletions(self) -> None:
        """Make the deletions so far survive a power cut; once for many is enough. Blocks."""
        unflushed, self._unflushed = self._unflushed, set()
        for path in unflushed:
            try:
                fsync_directory(path)
            except OSError as error:
                raise LogStorageError(f"deletions in {path} can't be flushed: {error}") from error

    def set_aside(self, topic: str, partition: int) -> Path | None:
        """Take a log out whose topic is unknown; its files stay, renamed, until a person has judged them. Blocks."""
        return self._take_out(topic, partition, STRAY_SUFFIX)

    def refuse(self, log: PartitionLog, reason: str) -> None:
        """Keep a log from being used or made anew; its files stay as they are. Blocks."""
        error = LogStorageError(f"partition {log.name} stays offline: {reason}")
        logger.error("%s", error.message)
        known = LastKnown(
            recovery_point=log.recovery_point,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )
        key = log.topic, log.partition
        self._offline[key] = error, _Found(key, log.directory, known)
        del self._logs[key]
        log.close(clean=False)

    def _take_out(self, topic: str, partition: int, suffix: str) -> Path | None:
        """Rename a log's directory and forget the log; gives its new path, None when there is no such log."""
        key = topic, partition
        log = self._logs.pop(key, None)
        _, found = self._offline.pop(key, (None, None))
        self._stale.add(key)
        suffix = f".{uuid.uuid4().hex}{suffix}"
        name = f"{topic}-{partition}"[: _FILE_NAME_BYTES_MAX - len(suffix)] + suffix
        try:
            if log is not None:
                self._logs_count[log.directory.parent] -= 1
                target = log.directory.parent / name
                log.move(target)
                log.close(clean=False)
            elif found is not None:
                target = found.path.parent / name
                os.rename(found.path, target)
            else:
                return None
        except OSError as error:
            raise LogStorageError(f"partition {topic}-{partition} can't be taken out: {error}") from error
        return target

    def _doom(self, due_ms: int, path: Path) -> None:
        with self._doomed_guard:
            self._doomed.append((due_ms, path))

    def take_directory_offline(self, path: Path, reason: str) -> None:
        """Stop using a data directory whose disk failed: its logs refuse everything."""
        directory = self._directories[path]
        directory.take_offline(reason)
        for log in self.logs():
            if log.directory.parent == path:
                log.take_offline(reason)

    # Keeping

    def background_tasks(self) -> list[BackgroundTask]:
        """What the broker's scheduler shall run, with how often."""
        config = self._config
        flush_interval_ms = min(config.flush_scheduler_interval_ms, _HOUSEKEEPING_INTERVAL_MS)
        return [
            BackgroundTask("flush logs", flush_interval_ms, self._flush_due),
            BackgroundTask("checkpoint recovery points", config.recovery_point_interval_ms, self._checkpoint),
            BackgroundTask(
                "checkpoint high watermarks", config.high_watermark_interval_ms, self._checkpoint_watermarks
            ),
            BackgroundTask("roll segments", _ROLL_CHECK_INTERVAL_MS, self._roll_due),
            BackgroundTask("remove deleted files", _HOUSEKEEPING_INTERVAL_MS, self._remove_due),
            BackgroundTask("expire producers", config.producer_check_interval_ms, self._expire_producers),
        ]

    def checkpoint(self) -> bool:
        """Write recovery points, log start offsets, high watermarks; False when a full disk kept old ones. Blocks."""
        # What is deleted later stays stale, whatever was written meanwhile.
        stale = set(self._stale)
        is_written = True
        for directory in self._online():
            logs = self._logs_of(directory)
            kept = {key: found.known for key, found in self._offline_of(directory)}
            is_written &= directory.write_recovery_points({key: log.recovery_point for key, log in logs.items()})
            starts = {key: known.log_start_offset for key, known in kept.items()}
            starts |= {key: log.log_start_offset for key, log in logs.items()}
            is_written &= directory.write_log_start_offsets(
                {key: offset for key, offset in starts.items() if offset > 0}
            )
        is_written &= self.checkpoint_high_watermarks()
        if is_written:
            self._stale -= stale
        return is_written

    def checkpoint_high_watermarks(self) -> bool:
        """Write high watermarks; False when a full disk kept old ones. Blocks."""
        is_written = True
        for directory in self._online():
            watermarks = {key: found.known.high_watermark for key, found in self._offline_of(directory)}
            watermarks |= {key: log.high_watermark for key, log in self._logs_of(directory).items()}
            is_written &= directory.write_high_watermarks(watermarks)
        return is_written

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if directory.offline_reason is None]

    def _logs_of(self, directory: LogDirectory) -> dict[PartitionKey, PartitionLog]:
        logs = self._logs.copy()
        return {key: log for key, log in logs.items() if log.directory.parent == directory.path}

    def _offline_of(self, directory: LogDirectory) -> list[tuple[PartitionKey, _Found]]:
        offline = self._offline.copy()
        return [(key, found) for key, (_, found) in offline.items() if found.path.parent == directory.path]

    async def _checkpoint(self) -> None:
        await asyncio.to_thread(self.checkpoint)

    async def _checkpoint_watermarks(self) -> None:
        await asyncio.to_thread(self.checkpoint_high_watermarks)

    async def _flush_due(self) -> None:
        now_ms = self._clock.now_ms()
        due = [
            log
            for log in self.logs()
            if log.flushed_offset < log.log_end_offset
            and not log.is_offline
            and (log.has_unflushed_segments or now_ms - log.last_flush_ms >= log.config.flush_ms)
        ]
        if due:
            await asyncio.to_thread(_flush_all, due)

    async def _roll_due(self) -> None:
        now_ms = self._clock.now_ms()
        for log in self.logs():
            if log.is_offline:
                continue
            try:
                log.maybe_roll(now_ms)
            except LogStorageError as error:
                logger.error("%s", error.message)

    async def _remove_due(self) -> None:
        now_ms = self._clock.now_ms()
        paths = [path for log in self.logs() for path in log.take_removed_paths(now_ms)]
        with self._doomed_guard:
            paths += [path for due_ms, path in self._doomed if due_ms <= now_ms]
            self._doomed = [(due_ms, path) for due_ms, path in self._doomed if due_ms > now_ms]
        if paths:
            await asyncio.to_thread(_remove_all, paths)

    async def _expire_producers(self) -> None:
        now_ms = self._clock.now_ms()
        for log in self.logs():
            log.remove_expired_producers(now_ms, self._config.producer_expiration_ms)

    # Stopping

    def close(self, *, clean: bool = True, broker_epoch: int = -1) -> None:
        """Flush and close all logs and give the directories back. Blocks. Unclean: as after a crash, but unlocked."""
        logs = self.logs()
        failed = {log.directory.parent for log in logs if log.is_offline}
        if logs:
            with ThreadPoolExecutor(min(_CLOSE_THREADS, len(logs)), "log-close") as threads:
                closed = threads.map(lambda log: _close(log, clean), logs)
                failed |= {log.directory.parent for log, is_closed in zip(logs, closed, strict=True) if not is_closed}
        if clean and self.checkpoint():
            for directory in self._online():
                if directory.path not in failed:
                    ends = {key: log.log_end for key, log in self._logs_of(directory).items()}
                    directory.write_clean_marker(ends, broker_epoch)
        for directory in self.directories:
            directory.unlock()


def _as_text(path: str) -> str:
    """A name from the file system may hold any bytes; a line of the log may not."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _close(log: PartitionLog, clean: bool) -> bool:
    try:
        log.close(clean=clean)
    except LogStorageError as error:
        logger.error("%s", error.message)
        log.close(clean=False)
        return False
    return True


def _flush_all(logs: Iterable[PartitionLog]) -> None:
    for log in logs:
        try:
            log.flush()
        except LogStorageError as error:
            logger.error("%s", error.message)


def _remove_all(paths: Iterable[Path]) -> None:
    import shutil

    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
