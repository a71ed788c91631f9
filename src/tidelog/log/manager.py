"""All logs of a broker: opens them at startup, creates and deletes them, keeps their checkpoints, closes them.

What always holds: there is one log per topic and partition; a partition whose files are corrupt is offline and can be
neither read nor recreated, while all others are served; the clean-shutdown marker is written last, after everything it
vouches for. One thread at a time creates and deletes logs, not necessarily the event loop's; methods that block say so,
the others are called on the event loop. It makes no decisions about leaders.
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
from pathlib import Path

from tidelog.common.checks import partition_of_directory
from tidelog.common.clock import Clock
from tidelog.common.light_dataclass import dataclass
from tidelog.common.settings import Settings
from tidelog.log.checkpoints import PartitionKey, fsync_directory, read_partition_metadata, sync_files
from tidelog.log.cleaner_config import LogCleanerConfig
from tidelog.log.cleaner_manager import LogCleaner
from tidelog.log.config import LogConfig
from tidelog.log.directory import LogDirectory
from tidelog.log.directory_set import DirectorySet
from tidelog.log.epochs import UNDEFINED_EPOCH
from tidelog.log.errors import CorruptCheckpointError, DataDirectoryError, LogStorageError, NoRoomError
from tidelog.log.flush_together import flush_together
from tidelog.log.health import is_out_of_room
from tidelog.log.housekeeping import BackgroundTask, Housekeeping
from tidelog.log.loading import open_all
from tidelog.log.manager_config import LogManagerConfig
from tidelog.log.moves import FUTURE_SUFFIX, MoveNote, put_back, read_note, remove_note, write_note
from tidelog.log.open_files import OPEN_FILES
from tidelog.log.partition_log import LogOwner, PartitionLog
from tidelog.log.placement import find_doubles
from tidelog.log.producer_limits import ProducerLimits
from tidelog.log.recovery import LastKnown, RecoveryProgress, create_log, open_log, rest_log
from tidelog.log.set_aside import CUT_SUFFIX
from tidelog.protocol import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

# A copy forgets its producers for those of its log in the end.
_LIMITS_OF_COPIES = (1_000_000, 1_000_000)
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_FILE_NAME_BYTES_MAX = 255
# Closing waits for the disk, not for the CPU, and filesystems flush many files together about as fast as one.
_CLOSE_THREADS = 16
# How many logs a thread processes at a time, so that handing them over costs next to nothing.
_REST_CHUNK = 256


@dataclass(frozen=True, slots=True)
class _Found:
    """A partition's directory at start."""

    key: PartitionKey
    path: Path
    known: LastKnown


@dataclass(slots=True)
class LogMove:
    """A log that is copied to another data directory."""

    key: PartitionKey
    log: PartitionLog
    copy: PartitionLog
    source: Path
    # Under which name the log is put away when the copy takes its place.
    retired: Path
    # Where the log starts according to the checkpoint of the new directory; -1: no checkpoint was written.
    checkpointed_start_offset: int = -1
    # What the checkpoints of the old directory keep saying until the log's departure is on disk.
    left: LastKnown | None = None


class LogManager:
    """The logs in the data directories of one broker."""

    def __init__(self, log_dirs: Sequence[Path], values: Settings | Mapping[str, object], clock: Clock) -> None:
        self._config = LogManagerConfig.from_values(values)
        # These two may change while the broker runs.
        self.recovery_threads = self._config.recovery_threads
        self.producer_expiration_ms = self._config.producer_expiration_ms
        OPEN_FILES.set_limit(self._config.max_open_files)
        self._clock = clock
        self._directories = DirectorySet(map(Path, log_dirs))
        self._has_one_directory = len(log_dirs) == 1
        self._directories.subscribe(self._on_directory_offline)
        self._logs: dict[PartitionKey, PartitionLog] = {}
        self._logs_count: Counter[Path] = Counter()
        # The others are at rest.
        self._open_logs: set[PartitionLog] = set()
        # Logs whose segments changed since the last check, or that still wait for something.
        self._changed_logs: set[PartitionLog] = set()
        producer_limits = ProducerLimits(self._config.producer_ids_per_partition_max, self._config.producer_ids_max)
        self._owners = {
            directory.path: LogOwner(
                directory.fail,
                self._changed_logs.add,
                self._open_logs.add,
                self._lower_recovery_point,
                producer_limits,
                directory.path,
            )
            for directory in self._directories
        }
        self._offline: dict[PartitionKey, tuple[LogStorageError, _Found]] = {}
        # Partitions in a missing data directory.
        self._withheld: dict[PartitionKey, LogStorageError] = {}
        # Deleted partitions that may still be in checkpoint files; a new log of that name must not inherit their
        # offsets.
        self._stale: set[PartitionKey] = set()
        self._doomed: list[tuple[int, Path]] = []
        self._doomed_guard = threading.Lock()
        self._log_starts_guard = threading.Lock()
        self._moves: dict[PartitionKey, LogMove] = {}
        # Data directories with unflushed deletions.
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

    def open_logs(self) -> list[PartitionLog]:
        """The logs whose files have been read; the others have nothing to flush, expire or compact."""
        return list(self._open_logs)

    @property
    def has_logs_at_rest(self) -> bool:
        return len(self._open_logs) < len(self._logs)

    def logs_with_work_behind(self) -> list[PartitionLog]:
        """Logs with segments that wait for something. Most of thousands of logs are at rest, and are skipped."""
        for log in tuple(self._changed_logs):
            # In this order: another thread may be changing its segments.
            self._changed_logs.discard(log)
            if log.has_work_behind and not log.is_offline:
                self._changed_logs.add(log)
        return list(self._changed_logs)

    # Starting

    def open(self, cluster_id: str, node_id: int) -> None:
        """Lock the directories and check their owner; raises a DataDirectoryError that says what to do."""
        try:
            self._directories.lock()
            self._directories.identify(cluster_id, node_id)
        except BaseException:
            self._directories.unlock()
            raise

    def load(
        self, configs: Mapping[str, LogConfig] | None = None, topic_ids: Mapping[str, uuid.UUID] | None = None
    ) -> None:
        """Open all logs in the directories, checking them as far as needed. Blocks; uses its own threads.

        Topic ids decide which directory is right if two hold the same partition. A log that can't be opened is offline;
        raises DataDirectoryError if no directory can be read.
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

        self._settle_moves()
        self._directories.try_each(look_through)
        found = self._without_doubles(found, topic_ids or {})
        started_ms = self._clock.monotonic_ms()
        open_one = functools.partial(self._open_log, configs or {})
        is_shorter = False
        unrested = self._rest_logs(found, configs or {}, topic_ids or {})
        for item, opened in open_all(unrested, open_one, self.recovery_threads):
            if isinstance(opened, LogStorageError):
                self._offline[item.key] = opened, item
                logger.error("%s", opened.message)
            else:
                self._take_in(item.key, opened)
                is_shorter |= opened.recovery_point < item.known.recovery_point
        if is_shorter:
            # What is appended from now on is not flushed, even if a checkpoint of a longer log says so.
            self.checkpoint()
        for directory in self._directories.online:
            directory.note_boot()
            for key, offset in directory.read_cleaner_offsets().items():
                if key in self._logs:
                    self._logs[key].first_dirty_offset = offset
        if not found:
            return
        logger.info(
            "loaded %d logs, %d of them opened, in %.0f ms after a%s shutdown, %d offline",
            len(self._logs),
            len(self._open_logs),
            self._clock.monotonic_ms() - started_ms,
            " clean" if self.was_clean_shutdown else "n unclean",
            len(self._offline),
        )

    def _settle_moves(self) -> None:
        """Let logs that were being moved when the broker ended be where they were; their copies are dropped."""

        def settle(directory: LogDirectory) -> None:
            try:
                names = [entry.name for entry in os.scandir(directory.path) if entry.name.endswith(FUTURE_SUFFIX)]
            except OSError as error:
                raise DataDirectoryError(f"can't use the data directory {directory.path}: {error}") from error
            for name in names:
                self._settle_move(directory.path / name)

        self._directories.try_each(settle)

    def _settle_move(self, future: Path) -> None:
        for directory in self._directories.online:
            try:
                if put_back(future, directory.path):
                    break
            except OSError as error:
                directory.fail(f"a log that was being moved can't be put back: {error}")
        if self._directories.has_offline:
            # The log that goes with it may be in a directory that is missing.
            logger.warning("%s is left until all data directories work", future)
        else:
            logger.warning("%s is the copy of a move that did not end; it is removed: move it again", future)
            self._doom(self._clock.now_ms(), future)

    def _without_doubles(self, found: Iterable[_Found], topic_ids: Mapping[str, uuid.UUID]) -> list[_Found]:
        chosen, superseded, undecided = find_doubles(found, topic_ids)
        for item in superseded:
            target = _free_name(item.path, STRAY_SUFFIX)
            os.rename(item.path, target)
            logger.warning(
                "%s was replaced, by a topic of the same name or a move to another directory; it is set aside as %s",
                item.path,
                target,
            )
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
            if entry.name.endswith(FUTURE_SUFFIX):
                continue
            if entry.name.endswith(STRAY_SUFFIX):
                logger.warning("%s was set aside earlier; delete it if you don't need it", _as_text(entry.path))
                continue
            if entry.name.endswith(CUT_SUFFIX):
                logger.warning(
                    "%s holds what was cut out of a log; delete it if you don't need it", _as_text(entry.path)
                )
                continue
            key = partition_of_directory(entry.name)
            if key is None:
                logger.warning("%s is not a partition's directory and is left alone", _as_text(entry.path))
                continue
            yield _Found(key, Path(entry.path), known.pop(key, nothing_known))
        # Checkpoints of partitions that were deleted right before a crash.
        self._stale.update(known)

    def _rest_logs(
        self, found: Sequence[_Found], configs: Mapping[str, LogConfig], topic_ids: Mapping[str, uuid.UUID]
    ) -> list[_Found]:
        """Register logs that were closed cleanly and are unchanged, without opening them; returns all others."""
        names = {name: name for name in topic_ids}  # one text for a name, and not one for each of its partitions
        default_config = LogConfig()

        def rest(item: _Found) -> PartitionLog | None:
            topic, partition = item.key
            try:
                topic_id = read_partition_metadata(item.path)
                known_id = topic_ids.get(topic)
                return rest_log(
                    names.get(topic, topic),
                    partition,
                    item.path,
                    known_id if known_id == topic_id else topic_id,
                    configs.get(topic) or default_config,
                    self._clock,
                    item.known,
                    self._owners[item.path.parent],
                )
            except (OSError, CorruptCheckpointError) as error:
                # Opening it meets the same error, and explains it.
                logger.debug("%s has to be opened: %s", item.path, error)
                return None

        unrested = [item for item in found if not item.known.is_clean]
        closed = [item for item in found if item.known.is_clean]
        chunks = [closed[start : start + _REST_CHUNK] for start in range(0, len(closed), _REST_CHUNK)]
        with ThreadPoolExecutor(self.recovery_threads, "log-recovery") as threads:
            for chunk, logs in zip(chunks, threads.map(lambda chunk: list(map(rest, chunk)), chunks), strict=True):
                for item, log in zip(chunk, logs, strict=True):
                    if log is None:
                        unrested.append(item)
                    else:
                        self._take_in((log.topic, log.partition), log)
        return unrested

    def _open_log(self, configs: Mapping[str, LogConfig], item: _Found, progress: RecoveryProgress) -> PartitionLog:
        topic, partition = item.key
        try:
            topic_id = read_partition_metadata(item.path)
            self._finish_cut_off_move(item.path)
            config = configs.get(topic) or LogConfig()
            owner = self._owners[item.path.parent]
            return open_log(topic, partition, item.path, topic_id, config, self._clock, item.known, progress, owner)
        except (OSError, CorruptCheckpointError) as error:
            kind = NoRoomError if isinstance(error, OSError) and is_out_of_room(error) else LogStorageError
            raise kind(f"partition {topic}-{partition} can't be opened: {error}") from error

    def _finish_cut_off_move(self, path: Path) -> None:
        """Forget that a log was moved here, once it is on disk that it has left the directory where it was."""
        if not self._directories.has_offline and read_note(path) is not None:
            for directory in self._directories:
                fsync_directory(directory.path)
            remove_note(path)

    # Logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The log, if there is one; raises LogStorageError if its files exist but can't be used."""
        key = topic, partition
        log = self._logs.get(key)
        if log is None and key in self._offline:
            raise self._offline[key][0]
        if log is None and key in self._withheld:
            raise self._withheld[key]
        return log

    def has(self, topic: str, partition: int) -> bool:
        """Whether the partition has files, usable or not."""
        return (topic, partition) in self._logs or (topic, partition) in self._offline

    def withhold(self, topic: str, partition: int, reason: str) -> None:
        """Keep a partition from being recreated while its files are missing; its offsets would be assigned twice."""
        self._withheld[topic, partition] = LogStorageError(f"partition {topic}-{partition} is offline: {reason}")

    def release(self, topic: str, partition: int) -> None:
        """Let a partition that was withheld be created again: others have what its lost log held."""
        self._withheld.pop((topic, partition), None)

    def is_withheld(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._withheld

    def create(
        self,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        config: LogConfig,
        *,
        leader_epoch: int = UNDEFINED_EPOCH,
    ) -> PartitionLog:
        """Create a log, see `create_log`; raises LogStorageError if the disk fails. Blocks."""
        key = topic, partition
        if self.get(topic, partition) is not None:
            raise ValueError(f"{topic}-{partition} exists")
        directory = self._choose_directory()
        try:
            if key in self._stale and not self.checkpoint():
                raise LogStorageError(
                    f"partition {topic}-{partition} can't be created while checkpoints name the old one"
                )
            path, owner = directory.path / f"{topic}-{partition}", self._owners[directory.path]
            log = create_log(topic, partition, path, topic_id, config, self._clock, owner, leader_epoch=leader_epoch)
        except OSError as error:
            kind = NoRoomError if is_out_of_room(error) else LogStorageError
            raise kind(f"partition {topic}-{partition} can't be created: {error}") from error
        self._take_in(key, log)
        return log

    def _take_in(self, key: PartitionKey, log: PartitionLog) -> None:
        directory = self._directories[log.parent]
        if log.is_open:
            self._open_logs.add(log)
            self._changed_logs.add(log)
        self._logs[key] = log
        self._logs_count[log.parent] += 1
        if directory.offline_reason is not None:
            # The directory went offline while the log was being created, and its logs were taken offline without this
            # one.
            log.health.take_offline(directory.offline_reason)

    def get_or_create(
        self,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        config: LogConfig,
        *,
        leader_epoch: int = UNDEFINED_EPOCH,
    ) -> PartitionLog:
        """The log with these settings; refuses one that belongs to another topic of the same name. Blocks.

        One that a full disk kept from being opened is opened now, if there is room.
        """
        failure, item = self._offline.get((topic, partition), (None, None))
        if item is not None and isinstance(failure, NoRoomError):
            self._open_again(item, config)
        log = self.get(topic, partition)
        if log is None:
            return self.create(topic, partition, topic_id, config, leader_epoch=leader_epoch)
        if log.topic_id is None:
            log.assign_topic_id(topic_id)
        elif log.topic_id != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{log.name} has topic id {log.topic_id}, expected {topic_id}"
            )
        log.update_config(config)
        return log

    def _open_again(self, item: _Found, config: LogConfig) -> None:
        log = self._open_log({item.key[0]: config}, item, RecoveryProgress())
        del self._offline[item.key]
        self._take_in(item.key, log)
        if log.recovery_point < item.known.recovery_point:
            self.checkpoint()

    def _choose_directory(self) -> LogDirectory:
        online = self._directories.online
        if not online:
            raise LogStorageError("all data directories are offline")
        return min(online, key=lambda directory: self._logs_count[directory.path])

    def delete(self, topic: str, partition: int) -> None:
        """Remove a log immediately; its files are deleted after file.delete.delay.ms, and readers are not disturbed.

        Blocks. `flush_deletions` makes sure that a power cut does not bring the files back.
        """
        log = self._logs.get((topic, partition))
        target = self._take_out(topic, partition, DELETE_SUFFIX)
        if target is not None:
            self._unflushed.add(target.parent)
            delay_ms = log.config.file_delete_delay_ms if log is not None else 0
            self._doom(self._clock.now_ms() + delay_ms, target)

    def flush_deletions(self) -> None:
        """Make all deletions so far survive a power cut; one call covers many. Blocks."""
        unflushed, self._unflushed = self._unflushed, set()
        for path in unflushed:
            try:
                fsync_directory(path)
            except OSError as error:
                raise LogStorageError(f"deletions in {path} can't be flushed: {error}") from error

    def set_aside(self, topic: str, partition: int) -> Path | None:
        """Remove a log whose topic is unknown; its files are renamed and kept for someone to decide. Blocks."""
        return self._take_out(topic, partition, STRAY_SUFFIX)

    def refuse(self, log: PartitionLog, reason: str) -> None:
        """Keep a log from being used or recreated; its files stay as they are. Blocks."""
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
        self._open_logs.discard(log)
        log.close(clean=False)

    def _take_out(self, topic: str, partition: int, suffix: str) -> Path | None:
        """Rename a log's directory and forget the log; returns its new path, or None if there is no such log."""
        key = topic, partition
        log = self._logs.pop(key, None)
        _, found = self._offline.pop(key, (None, None))
        self._stale.add(key)
        self._withheld.pop(key, None)
        try:
            if log is not None:
                self._logs_count[log.parent] -= 1
                self._open_logs.discard(log)
                self.cleaner.abort(log)
                target = _free_name(log.directory, suffix)
                log.retire(target)
            elif found is not None:
                target = _free_name(found.path, suffix)
                os.rename(found.path, target)
            else:
                return None
        except OSError as error:
            raise LogStorageError(f"partition {topic}-{partition} can't be taken out: {error}") from error
        return target

    # Moving

    def begin_move(self, log: PartitionLog, target: Path) -> LogMove:
        """An empty copy of a log in another data directory; raises LogStorageError. Blocks, in a thread of its own.

        Until the move is finished or abandoned the log is not compacted.
        """
        directory = self._directories[target]
        owner = LogOwner(directory.fail, _ignore, _ignore, _ignore, ProducerLimits(*_LIMITS_OF_COPIES), target)
        self.cleaner.pause(log)
        try:
            log.open()
            if directory.offline_reason is not None:
                raise LogStorageError(directory.offline_reason)
            path = _free_name(target / log.name, FUTURE_SUFFIX)
            copy = create_log(log.topic, log.partition, path, log.topic_id, log.config, self._clock, owner)
        except LogStorageError:
            self.cleaner.resume(log)
            raise
        except OSError as error:
            self.cleaner.resume(log)
            if not is_out_of_room(error):
                directory.fail(f"a copy of {log.name} can't be created: {error}")
            raise LogStorageError(f"{log.name} can't be copied to {target}: {error}") from error
        key = log.topic, log.partition
        move = LogMove(key, log, copy, log.parent, _free_name(log.directory, DELETE_SUFFIX))
        self._moves[key] = move
        return move

    def prepare_move(self, move: LogMove, offset: int, packed_producers: list[bytes]) -> bool:
        """Flush the copy and write what a crash after the move needs; False if a disk was full. Blocks.

        The copy holds all below the offset, where the log knows these producers.
        """
        copy = move.copy
        # First, so that no snapshot of what the copy itself knows follows it.
        copy.keep_producers_of(offset, packed_producers)
        copy.flush()
        copy.take_epochs_of(move.log)
        start_offset = copy.log_start_offset
        try:
            known = read_note(move.log.directory)
            note = MoveNote(1 if known is None else known.number + 1, move.log.name, move.retired.name)
            sync_files(copy.directory)
            write_note(copy.directory, note)
        except OSError as error:
            if is_out_of_room(error):
                return False
            raise copy.health.go_offline(f"a move can't be noted: {error}") from error
        if not self.checkpoint():
            return False
        move.checkpointed_start_offset = start_offset
        return True

    def commit_move(self, move: LogMove) -> bool:
        """Switch the log to its copy, which has all its records; False if that isn't possible right now.

        Called on the event loop, with flushes held and nothing else between the look at the logs' ends and this.
        """
        log, copy = move.log, move.copy
        if self._logs.get(move.key) is not log or log.is_offline or copy.is_offline or log.is_truncating:
            return False
        is_flushed = copy.flushed_offset >= min(log.flushed_offset, copy.log_end_offset)
        if not is_flushed or move.checkpointed_start_offset != log.log_start_offset:
            return False
        copy.take_epochs_of(log)
        left = LastKnown(
            recovery_point=log.recovery_point,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )
        move.left = left
        is_moved = False
        try:
            is_moved = log.move_to(copy, move.retired, self._owners[copy.parent])
        finally:
            if not is_moved:
                move.left = None
        if not is_moved:
            return False
        self._logs_count[move.source] -= 1
        self._logs_count[log.parent] += 1
        return True

    def finish_move(self, move: LogMove) -> None:
        """Make sure that a power cut does not undo a move that was committed. Blocks."""
        log = move.log
        try:
            log.flush()
            with log.health.storage("move"):
                self._let_go(move)
        finally:
            self.cleaner.resume(log)

    def _let_go(self, move: LogMove) -> None:
        source = self._directories[move.source]
        if source.offline_reason is None:
            try:
                fsync_directory(move.source)
            except OSError as error:
                source.fail(f"a move to another directory can't be flushed: {error}")
        if source.offline_reason is None:
            # Otherwise the old files may be back at the next start, and the note says that they don't count.
            remove_note(move.log.directory)
            self._doom(self._clock.now_ms() + move.log.config.file_delete_delay_ms, move.retired)
            self._moves.pop(move.key, None)

    def abandon_move(self, move: LogMove) -> None:
        """Drop a copy that is no longer wanted, or can't be finished. Blocks."""
        self._moves.pop(move.key, None)
        # Checkpoints may name it.
        self._stale.add(move.key)
        self.cleaner.resume(move.log)
        target = _free_name(move.copy.directory, DELETE_SUFFIX)
        try:
            move.copy.retire(target)
        except OSError as error:
            logger.warning("%s can't be removed: %s; the next start will remove it", move.copy.directory, error)
            move.copy.close(clean=False)
        else:
            self._doom(self._clock.now_ms(), target)

    def _doom(self, due_ms: int, path: Path) -> None:
        with self._doomed_guard:
            self._doomed.append((due_ms, path))

    def _on_directory_offline(self, path: Path) -> None:
        """The disk failed: all logs on it refuse everything. May be called from any thread."""
        reason = self._directories[path].offline_reason or ""
        copies = [move.copy for move in tuple(self._moves.values())]
        for log in (*self.logs(), *copies):
            if log.parent == path:
                log.health.take_offline(reason)

    # Keeping

    def background_tasks(self) -> list[BackgroundTask]:
        """What the broker's scheduler should run, and how often."""
        config = self.cleaner.config
        cleaners = range(config.threads if config.enable else 0)
        return [
            *Housekeeping(self, self._config, self._clock).tasks(),
            *(BackgroundTask(f"compact logs {number}", config.backoff_ms, self.cleaner.run) for number in cleaners),
        ]

    def checkpoint(self) -> bool:
        """Write recovery points, log start offsets, high watermarks; False if the disk was full. Blocks."""
        # What is deleted later stays stale, whatever is written in the meantime.
        stale = set(self._stale)
        is_written = True
        for directory in self._directories.online:
            logs = self._told_of(directory)
            is_written &= directory.write_recovery_points({key: log.recovery_point for key, log in logs.items()})
        is_written &= self.checkpoint_log_start_offsets()
        is_written &= self.checkpoint_high_watermarks()
        is_written &= self.checkpoint_cleaner_offsets()
        if is_written:
            self._stale -= stale
        return is_written

    def _lower_recovery_point(self, log: PartitionLog) -> None:
        """Write the recovery points, if the one of a truncated log is too high.

        What is appended next would otherwise count as flushed after a power cut, and its loss as damage. A full disk
        keeps the old ones until there is room; until then there is none for records either.
        """
        directory = self._directories[log.parent]
        if directory.written_recovery_point((log.topic, log.partition)) > log.recovery_point:
            logs = self._told_of(directory)
            directory.write_recovery_points({key: each.recovery_point for key, each in logs.items()})

    def checkpoint_log_start_offsets(self) -> bool:
        """Write where logs start; False if the disk was full. Blocks."""
        is_written = True
        # Data read by one thread must not be written after newer data read by another.
        with self._log_starts_guard:
            for directory in self._directories.online:
                starts = {key: found.known.log_start_offset for key, found in self._offline_of(directory)}
                starts |= {key: log.log_start_offset for key, log in self._told_of(directory).items()}
                is_written &= directory.write_log_start_offsets(
                    {key: offset for key, offset in starts.items() if offset > 0}
                )
        return is_written

    def checkpoint_high_watermarks(self) -> bool:
        """Write high watermarks; False if the disk was full. Blocks."""
        is_written = True
        for directory in self._directories.online:
            watermarks = {key: found.known.high_watermark for key, found in self._offline_of(directory)}
            watermarks |= {key: log.high_watermark for key, log in self._told_of(directory).items()}
            is_written &= directory.write_high_watermarks(watermarks)
        return is_written

    def checkpoint_cleaner_offsets(self) -> bool:
        """Write how far logs are compacted; False if the disk was full. Blocks."""
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
        return {key: log for key, log in logs.items() if log.parent == directory.path}

    def _told_of(self, directory: LogDirectory) -> dict[PartitionKey, PartitionLog | LastKnown]:
        """What the checkpoints of a directory tell of: also logs that are moving there, or may not have left it yet."""
        # In this order: a log that leaves meanwhile is among the others then.
        here = self._logs_of(directory)
        told: dict[PartitionKey, PartitionLog | LastKnown] = {}
        for key, move in self._moves.copy().items():
            if move.source == directory.path and move.left is not None:
                told[key] = move.left
            elif move.copy.parent == directory.path:
                told[key] = move.copy
        told |= here
        return told

    def _offline_of(self, directory: LogDirectory) -> list[tuple[PartitionKey, _Found]]:
        offline = self._offline.copy()
        return [(key, found) for key, (_, found) in offline.items() if found.path.parent == directory.path]

    def rename_dropped_segments(self) -> None:
        """Rename the files of dropped segments, once their logs' start offsets are on disk. Blocks."""
        logs = [log for log in self.logs_with_work_behind() if log.has_dropped_segments]
        # A full disk must not prevent what would make room on it; each log's first file is secured in another way then.
        sync = bool(logs) and not self.checkpoint_log_start_offsets()
        for log in logs:
            try:
                log.rename_dropped(sync=sync)
            except LogStorageError as error:
                logger.error("%s", error.message)

    def take_doomed_paths(self, now_ms: int) -> list[Path]:
        """The directories of deleted partitions that are due; the caller removes them."""
        with self._doomed_guard:
            due = [path for due_ms, path in self._doomed if due_ms <= now_ms]
            self._doomed = [(due_ms, path) for due_ms, path in self._doomed if due_ms > now_ms]
        return due

    # Stopping

    def close(self, *, clean: bool = True, broker_epoch: int = -1) -> None:
        """Flush and close all logs and unlock the directories. Blocks. Unclean: as after a crash, but unlocked."""
        if clean:
            self.rename_dropped_segments()
            for directory in self._directories.online:
                online = [log for log in self._logs_of(directory).values() if not log.is_offline]
                flush_together(directory, [log for log in online if log.has_unflushed], closing=True)
        logs = self.logs()
        damaged = {log for log in logs if log.health.is_damaged}
        failed = {log.parent for log in logs if log.is_offline and log not in damaged}
        waiting = [log for log in logs if clean and log.has_unflushed]
        if waiting:
            with ThreadPoolExecutor(min(_CLOSE_THREADS, len(waiting)), "log-close") as threads:
                results = threads.map(lambda log: _close(log, clean), waiting)
                failed |= {log.parent for log, is_ok in zip(waiting, results, strict=True) if not is_ok}
        # The rest doesn't wait for the disk, so threads would only wait for each other.
        failed |= {log.parent for log in logs if not _close(log, clean)}
        if clean and self.checkpoint():
            for directory in self._directories.online:
                if directory.path not in failed:
                    here = self._logs_of(directory).items()
                    ends = {key: log.log_end for key, log in here if log not in damaged}
                    directory.write_clean_marker(ends, broker_epoch)
        self._directories.unlock()


def _ignore(_: PartitionLog) -> None:
    """Nobody else looks after a copy."""


def _free_name(path: Path, suffix: str) -> Path:
    """An unused name in the same directory."""
    suffix = f".{uuid.uuid4().hex}{suffix}"
    return path.with_name(path.name[: _FILE_NAME_BYTES_MAX - len(suffix)] + suffix)


def _as_text(path: str) -> str:
    """A file name may contain any bytes; a log line may not."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _close(log: PartitionLog, clean: bool) -> bool:
    try:
        log.close(clean=clean)
    except LogStorageError as error:
        logger.error("%s", error.message)
        log.close(clean=False)
        return False
    return True
