"""All logs of a broker: opening them at start, making and deleting them, keeping their checkpoints, closing them.

What always holds: a log is known once by topic and partition; a partition whose files are corrupt is known as offline
and can neither be read nor made anew, while all others serve; the clean-shutdown marker is written last, after
everything it vouches for. Logs are made and deleted by one thread at a time, which need not be the event loop's;
methods that block say so, the others are called on the event loop. It decides nothing about leaders.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tidelog.common.checks import partition_of_directory
from tidelog.common.clock import Clock
from tidelog.common.settings import Settings
from tidelog.log.checkpoints import PartitionKey, fsync_directory, read_partition_metadata
from tidelog.log.cleaner_config import LogCleanerConfig
from tidelog.log.cleaner_manager import LogCleaner
from tidelog.log.config import LogConfig
from tidelog.log.directory import LogDirectory
from tidelog.log.directory_set import DirectorySet
from tidelog.log.errors import CorruptCheckpointError, DataDirectoryError, LogStorageError
from tidelog.log.flush_together import flush_together
from tidelog.log.housekeeping import BackgroundTask, Housekeeping
from tidelog.log.loading import open_all
from tidelog.log.manager_config import LogManagerConfig
from tidelog.log.open_files import OPEN_FILES
from tidelog.log.partition_log import PartitionLog
from tidelog.log.placement import find_doubles
from tidelog.log.recovery import LastKnown, RecoveryProgress, create_log, open_log
from tidelog.log.set_aside import CUT_SUFFIX
from tidelog.protocol import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_FILE_NAME_BYTES_MAX = 255
# Closing waits for the disk, not for a processor, and file systems flush many files at once about as fast as one.
_CLOSE_THREADS = 16


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
        OPEN_FILES.set_limit(self._config.max_open_files)
        self._clock = clock
        self._directories = DirectorySet(map(Path, log_dirs))
        self._has_one_directory = len(log_dirs) == 1
        self._directories.subscribe(self._on_directory_offline)
        self._logs: dict[PartitionKey, PartitionLog] = {}
        self._logs_count: Counter[Path] = Counter()
        # Those whose segments changed since they were last looked at, or still wait for something.
        self._changed_logs: set[PartitionLog] = set()
        self._offline: dict[PartitionKey, tuple[LogStorageError, _Found]] = {}
        # Partitions that lie in a data directory that is not there.
        self._withheld: dict[PartitionKey, LogStorageError] = {}
        # Deleted partitions that the checkpoint files may still name; a new log of that name must not inherit them.
        self._stale: set[PartitionKey] = set()
        self._doomed: list[tuple[int, Path]] = []
        self._doomed_guard = threading.Lock()
        self._log_starts_guard = threading.Lock()
        # Data directories in which deletions were made that are not flushed.
        self._unflushed: set[Path] = set()
        self.was_clean_shutdown = False
        self.cleaner = LogCleaner(
            LogCleanerConfig.from_values(values), clock, self.logs, self._logs.get, self.checkpoint_cleaner_offsets
        )

    @property
    def directories(self) -> DirectorySet:
        return self._directories

    @property
    def offline_partitions(self) -> dict[PartitionKey, LogStorageError]:
        return {key: error for key, (error, _) in self._offline.items()}

    def logs(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def logs_with_work_behind(self) -> list[PartitionLog]:
        """Those in which segments wait for something. Most of thousands of logs rest, and are not looked at."""
        for log in tuple(self._changed_logs):
            # In this order: another thread may be changing its segments.
            self._changed_logs.discard(log)
            if log.has_work_behind and not log.is_offline:
                self._changed_logs.add(log)
        return list(self._changed_logs)

    # Starting

    def open(self, cluster_id: str, node_id: int) -> None:
        """Lock the directories and check whose they are; raises DataDirectoryError with what to do about it."""
        try:
            self._directories.lock()
            self._directories.identify(cluster_id, node_id)
        except BaseException:
            self._directories.unlock()
            raise

    def load(
        self, configs: Mapping[str, LogConfig] | None = None, topic_ids: Mapping[str, uuid.UUID] | None = None
    ) -> None:
        """Open all logs that the directories hold, checking them as far as needed. Blocks; uses threads of its own.

        Topic ids tell which directory is right where two hold the same partition. A log that can't be opened is
        offline; raises DataDirectoryError when no directory can be read.
        """
        found: list[_Found] = []
        self.was_clean_shutdown = not self._directories.has_offline

        def look_through(directory: LogDirectory) -> None:
            try:
                is_clean = directory.take_clean_marker()
                found.extend(self._find(directory, is_clean=is_clean))
            except OSError as error:
                raise DataDirectoryError(f"can't use the data directory {directory.path}: {error}") from error
            self.was_clean_shutdown &= is_clean

        self._directories.try_each(look_through)
        found = self._without_doubles(found, topic_ids or {})
        started_ms = self._clock.monotonic_ms()
        open_one = functools.partial(self._open_log, configs or {})
        is_shorter = False
        for item, opened in open_all(found, open_one, self._config.recovery_threads):
            if isinstance(opened, LogStorageError):
                self._offline[item.key] = opened, item
                logger.error("%s", opened.message)
            else:
                self._take_in(item.key, opened, item.path.parent)
                is_shorter |= opened.recovery_point < item.known.recovery_point
        if is_shorter:
            # What is appended from now on was not flushed, wherever a checkpoint of longer logs says so.
            self.checkpoint()
        for directory in self._directories.online:
            directory.note_boot()
            for key, offset in directory.read_cleaner_offsets().items():
                if key in self._logs:
                    self._logs[key].first_dirty_offset = offset
        if not found:
            return
        logger.info(
            "loaded %d logs in %.0f ms after a%s shutdown, %d offline",
            len(self._logs),
            self._clock.monotonic_ms() - started_ms,
            " clean" if self.was_clean_shutdown else "n unclean",
            len(self._offline),
        )

    def _without_doubles(self, found: Iterable[_Found], topic_ids: Mapping[str, uuid.UUID]) -> list[_Found]:
        chosen, superseded, undecided = find_doubles(found, topic_ids)
        for item in superseded:
            target = _free_name(item.path, STRAY_SUFFIX)
            os.rename(item.path, target)
            logger.warning("%s is of an earlier topic of that name; it is set aside as %s", item.path, target)
        for item, error in undecided:
            self._offline[item.key] = error, item
            logger.error("%s", error.message)
        return chosen

    def _find(self, directory: LogDirectory, *, is_clean: bool) -> Iterable[_Found]:
        known = directory.last_known(is_clean=is_clean)
        nothing_known = directory.nothing_known(is_clean=is_clean)
        for entry in os.scandir(directory.path):
            if not entry.is_dir():
                continue
            if entry.name.endswith(DELETE_SUFFIX):
                self._doom(self._clock.now_ms(), Path(entry.path))
                continue
            if entry.name.endswith(STRAY_SUFFIX):
                logger.warning("%s was set aside earlier; delete it when it is not needed", _as_text(entry.path))
                continue
            if entry.name.endswith(CUT_SUFFIX):
                logger.warning("%s holds what was cut out of a log; delete it when not needed", _as_text(entry.path))
                continue
            key = partition_of_directory(entry.name)
            if key is None:
                logger.warning("%s is no partition's directory and is left alone", _as_text(entry.path))
                continue
            yield _Found(key, Path(entry.path), known.pop(key, nothing_known))
        # Checkpoints of partitions that were deleted right before a crash.
        self._stale.update(known)

    def _open_log(self, configs: Mapping[str, LogConfig], item: _Found, progress: RecoveryProgress) -> PartitionLog:
        topic, partition = item.key
        try:
            topic_id = read_partition_metadata(item.path)
            config = configs.get(topic) or LogConfig()
            return open_log(topic, partition, item.path, topic_id, config, self._clock, item.known, progress)
        except (OSError, CorruptCheckpointError) as error:
            raise LogStorageError(f"partition {topic}-{partition} can't be opened: {error}") from error

    # Logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The log, if there is one; raises LogStorageError when its files are there but not usable."""
        key = topic, partition
        log = self._logs.get(key)
        if log is None and key in self._offline:
            raise self._offline[key][0]
        if log is None and key in self._withheld:
            raise self._withheld[key]
        return log

    def has(self, topic: str, partition: int) -> bool:
        """Whether there are files of the partition, usable or not."""
        return (topic, partition) in self._logs or (topic, partition) in self._offline

    def withhold(self, topic: str, partition: int, reason: str) -> None:
        """Keep a partition from being made anew whose files are out of reach; its offsets would be given out twice."""
        self._withheld[topic, partition] = LogStorageError(f"partition {topic}-{partition} is offline: {reason}")

    def is_withheld(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._withheld

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
        self._take_in(key, log, directory.path)
        return log

    def _take_in(self, key: PartitionKey, log: PartitionLog, parent: Path) -> None:
        directory = self._directories[parent]
        log.on_failure = directory.fail
        log.on_segments_changed(functools.partial(self._changed_logs.add, log))
        self._changed_logs.add(log)
        self._logs[key] = log
        self._logs_count[parent] += 1
        if directory.offline_reason is not None:
            # It went offline while the log was made, and may have been looked for in vain.
            log.take_offline(directory.offline_reason)

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
        online = self._directories.online
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
        self._withheld.pop(key, None)
        try:
            if log is not None:
                self._logs_count[log.directory.parent] -= 1
                self.cleaner.abort(log)
                target = _free_name(log.directory, suffix)
                log.move(target)
                log.close(clean=False)
            elif found is not None:
                target = _free_name(found.path, suffix)
                os.rename(found.path, target)
            else:
                return None
        except OSError as error:
            raise LogStorageError(f"partition {topic}-{partition} can't be taken out: {error}") from error
        return target

    def _doom(self, due_ms: int, path: Path) -> None:
        with self._doomed_guard:
            self._doomed.append((due_ms, path))

    def _on_directory_offline(self, path: Path) -> None:
        """The disk failed: all logs on it refuse everything. May be called from any thread."""
        reason = self._directories[path].offline_reason or ""
        for log in self.logs():
            if log.directory.parent == path:
                log.take_offline(reason)

    # Keeping

    def background_tasks(self) -> list[BackgroundTask]:
        """What the broker's scheduler shall run, with how often."""
        config = self.cleaner.config
        cleaners = range(config.threads if config.enable else 0)
        return [
            *Housekeeping(self, self._config, self._clock).tasks(),
            *(BackgroundTask(f"compact logs {number}", config.backoff_ms, self.cleaner.run) for number in cleaners),
        ]

    def checkpoint(self) -> bool:
        """Write recovery points, log start offsets, high watermarks; False when a full disk kept old ones. Blocks."""
        # What is deleted later stays stale, whatever was written meanwhile.
        stale = set(self._stale)
        is_written = True
        for directory in self._directories.online:
            logs = self._logs_of(directory)
            is_written &= directory.write_recovery_points({key: log.recovery_point for key, log in logs.items()})
        is_written &= self.checkpoint_log_start_offsets()
        is_written &= self.checkpoint_high_watermarks()
        is_written &= self.checkpoint_cleaner_offsets()
        if is_written:
            self._stale -= stale
        return is_written

    def checkpoint_log_start_offsets(self) -> bool:
        """Write where logs start; False when a full disk kept the old file. Blocks."""
        is_written = True
        # What one thread read must not be written after what another read later.
        with self._log_starts_guard:
            for directory in self._directories.online:
                starts = {key: found.known.log_start_offset for key, found in self._offline_of(directory)}
                starts |= {key: log.log_start_offset for key, log in self._logs_of(directory).items()}
                is_written &= directory.write_log_start_offsets(
                    {key: offset for key, offset in starts.items() if offset > 0}
                )
        return is_written

    def checkpoint_high_watermarks(self) -> bool:
        """Write high watermarks; False when a full disk kept old ones. Blocks."""
        is_written = True
        for directory in self._directories.online:
            watermarks = {key: found.known.high_watermark for key, found in self._offline_of(directory)}
            watermarks |= {key: log.high_watermark for key, log in self._logs_of(directory).items()}
            is_written &= directory.write_high_watermarks(watermarks)
        return is_written

    def checkpoint_cleaner_offsets(self) -> bool:
        """Write up to where logs are compacted; False when a full disk kept the old file. Blocks."""
        is_written = True
        for directory in self._directories.online:
            cleaned = {key: log.first_dirty_offset for key, log in self._logs_of(directory).items()}
            is_written &= directory.write_cleaner_offsets(
                {key: offset for key, offset in cleaned.items() if offset is not None}
            )
        return is_written

    def _logs_of(self, directory: LogDirectory) -> dict[PartitionKey, PartitionLog]:
        logs = self._logs.copy()
        if self._has_one_directory:
            return logs
        return {key: log for key, log in logs.items() if log.directory.parent == directory.path}

    def _offline_of(self, directory: LogDirectory) -> list[tuple[PartitionKey, _Found]]:
        offline = self._offline.copy()
        return [(key, found) for key, (_, found) in offline.items() if found.path.parent == directory.path]

    def rename_dropped_segments(self) -> None:
        """Rename the files of segments that were dropped, once it is on disk where their logs start. Blocks."""
        logs = [log for log in self.logs_with_work_behind() if log.has_dropped_segments]
        # A full disk must not keep what would make room on it; what then begins each log is made sure of otherwise.
        sync = bool(logs) and not self.checkpoint_log_start_offsets()
        for log in logs:
            try:
                log.rename_dropped(sync=sync)
            except LogStorageError as error:
                logger.error("%s", error.message)

    def take_doomed_paths(self, now_ms: int) -> list[Path]:
        """The directories of deleted partitions whose time has come; the caller removes them."""
        with self._doomed_guard:
            due = [path for due_ms, path in self._doomed if due_ms <= now_ms]
            self._doomed = [(due_ms, path) for due_ms, path in self._doomed if due_ms > now_ms]
        return due

    # Stopping

    def close(self, *, clean: bool = True, broker_epoch: int = -1) -> None:
        """Flush and close all logs and give the directories back. Blocks. Unclean: as after a crash, but unlocked."""
        if clean:
            self.rename_dropped_segments()
            for directory in self._directories.online:
                online = [log for log in self._logs_of(directory).values() if not log.is_offline]
                flush_together(directory, [log for log in online if log.has_unflushed], closing=True)
        logs = self.logs()
        failed = {log.directory.parent for log in logs if log.is_offline}
        waiting = [log for log in logs if clean and log.has_unflushed]
        if waiting:
            with ThreadPoolExecutor(min(_CLOSE_THREADS, len(waiting)), "log-close") as threads:
                results = threads.map(lambda log: _close(log, clean), waiting)
                failed |= {log.directory.parent for log, is_ok in zip(waiting, results, strict=True) if not is_ok}
        # The rest waits for no disk, and threads would only wait for each other.
        failed |= {log.directory.parent for log in logs if not _close(log, clean)}
        if clean and self.checkpoint():
            for directory in self._directories.online:
                if directory.path not in failed:
                    ends = {key: log.log_end for key, log in self._logs_of(directory).items()}
                    directory.write_clean_marker(ends, broker_epoch)
        self._directories.unlock()


def _free_name(path: Path, suffix: str) -> Path:
    """A name beside this one that nothing has."""
    suffix = f".{uuid.uuid4().hex}{suffix}"
    return path.with_name(path.name[: _FILE_NAME_BYTES_MAX - len(suffix)] + suffix)


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
