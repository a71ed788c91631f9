"""Moves replicas between the data directories of this broker (AlterReplicaLogDirs, KIP-113).

A thread copies the log piece by piece, as fast as `replica.alter.log.dirs.io.max.bytes.per.second` lets it, while the
log is written and read as ever. When little is left, flushes of the log are held, the copy is flushed up to what the
log had flushed, and once the copy has all that was appended meanwhile, it takes the log's place between two requests.

What always holds: as many replicas are copied at a time as there are data directories, the others wait in the order of
their requests; a replica has at most one move, and a newer target replaces it; a copy follows every truncation and each
new start of its log before it takes its place; what is no longer wanted, or fails, is removed, and the replica stays
where it is. The event loop looks up where to read, copies at most the last few hundred KiB, and renames; all else is
done in threads. `log/moves.py` explains how a crash is survived. It decides nothing about leaders.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, ParamSpec, TypeVar

from tidelog.broker.partition import Partition
from tidelog.broker.replication_throttle import ReplicationQuota
from tidelog.common.background import start_background
from tidelog.log import BelowStartError, LogManager, LogStorageError, NotInMemoryError, PartitionLog
from tidelog.log.file_slice import FileSlice
from tidelog.log.manager import LogMove
from tidelog.protocol import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK_BYTES: Final = 1024 * 1024
_CHUNK_BYTES_MIN: Final = 16 * 1024
# Written to the disk as it comes, so that the machine's dirty memory is left to others.
_UNFLUSHED_BYTES_MAX: Final = 64 * 1024 * 1024
# What the loop copies itself in the end; from memory, it takes a millisecond.
_LAST_BYTES: Final = 256 * 1024
# How often the copy tries to catch up while flushes are held, before they are released and it starts again.
_CHASES_MAX: Final = 100
_PAUSE_S: Final = 0.1
_TRUNCATION_PAUSE_S: Final = 0.02
_COLD_LOOKUPS_MAX: Final = 10
_ANY_EPOCH: Final = 2**31 - 1


class _MoveEndedError(Exception):
    """The move is no longer wanted."""


class MoveStatus(NamedTuple):
    """How far a replica has been copied."""

    partition: Partition
    target: Path
    size_bytes: int
    offset_lag: int


class _Chunk(NamedTuple):
    """A part of a log, and where the log starts and is committed to."""

    records: FileSlice | bytes
    size_bytes: int
    log_start_offset: int
    high_watermark: int


class ReplicaMove:
    """One replica on its way."""

    def __init__(self, partition: Partition, target: Path) -> None:
        self.partition = partition
        self.target = target
        self.files: LogMove | None = None
        self.is_committed = False
        # How many truncations of the log the copy has followed.
        self.truncations = 0
        self.unflushed_bytes = 0
        self._ended = asyncio.Event()

    def end(self) -> None:
        """It is no longer wanted; what a thread is doing for it right now is finished first."""
        self._ended.set()

    def check(self) -> None:
        if self._ended.is_set() and not self.is_committed:
            raise _MoveEndedError

    async def pause(self, duration_s: float) -> None:
        """Let time pass, but only until it is ended."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), duration_s)
        self.check()

    @property
    def status(self) -> MoveStatus:
        log = self.partition.log
        copy = None if self.files is None else self.files.copy
        end_offset = log.log_start_offset if copy is None else copy.log_end_offset
        size_bytes = 0 if copy is None else copy.size_bytes
        return MoveStatus(self.partition, self.target, size_bytes, max(0, log.log_end_offset - end_offset))


class ReplicaMoves:
    """The moves of one broker's replicas."""

    def __init__(self, logs: LogManager, quota: ReplicationQuota, on_moved: Callable[[Partition], None]) -> None:
        """Create it on the running event loop; `on_moved` is called there."""
        self._logs = logs
        self._quota = quota
        self._on_moved = on_moved
        self._loop = asyncio.get_running_loop()
        self._at_a_time = max(1, sum(1 for _ in logs.directories))
        self._threads = ThreadPoolExecutor(self._at_a_time, thread_name_prefix="replica-moves")
        self._places = asyncio.Semaphore(self._at_a_time)
        self._moves: dict[Partition, ReplicaMove] = {}
        self._tasks: dict[ReplicaMove, asyncio.Task[None]] = {}
        self._is_closed = False

    @property
    def under_way(self) -> list[MoveStatus]:
        return [move.status for move in self._moves.values() if not move.is_committed]

    def find_directory(self, path: str) -> Path:
        """The data directory with this path; raises LOG_DIR_NOT_FOUND, or KAFKA_STORAGE_ERROR where it is offline."""
        wanted = os.path.abspath(path) if path else ""
        for directory in self._logs.directories:
            if os.path.abspath(directory.path) == wanted:
                if directory.offline_reason is not None:
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, directory.offline_reason)
                return directory.path
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path!r} is not a log directory of this broker")

    def start(self, partition: Partition, target: Path) -> None:
        """Move a replica, instead of where it was to move before; to where it is already: don't move it."""
        under_way = self._moves.get(partition)
        if under_way is not None and under_way.target == target:
            return
        self.cancel(partition)
        if partition.log.parent == target or self._is_closed:
            return
        move = self._moves[partition] = ReplicaMove(partition, target)
        before = None if under_way is None else self._tasks.get(under_way)
        task = start_background(self._run(move, before), f"move of {partition.log.name}")
        self._tasks[move] = task
        task.add_done_callback(functools.partial(self._on_done, move))

    def cancel(self, partition: Partition) -> None:
        """The replica stays where it is, as it is wanted there again, or not at all."""
        move = self._moves.pop(partition, None)
        if move is not None:
            move.end()

    async def close(self) -> None:
        """End all moves and wait for them."""
        self._is_closed = True
        for partition in tuple(self._moves):
            self.cancel(partition)
        while self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))
        self._threads.shutdown()

    def _on_done(self, move: ReplicaMove, _: asyncio.Task[None]) -> None:
        del self._tasks[move]
        if self._moves.get(move.partition) is move:
            del self._moves[move.partition]

    async def _run(self, move: ReplicaMove, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            # Its copy goes first, so that a replica never has two.
            await asyncio.wait([before])
        log = move.partition.log
        async with self._places:
            try:
                move.check()
                if log.parent == move.target:
                    return  # the move before was about to end there
                await self._move(move)
            except _MoveEndedError:
                logger.info("the move of %s to %s was cancelled", log.name, move.target)
            except (KafkaError, OSError) as error:
                logger.error("%s can't be moved to %s and stays where it is: %s", log.name, move.target, error)

    async def _move(self, move: ReplicaMove) -> None:
        log = move.partition.log
        source = log.parent
        files = move.files = await self._in_thread(self._logs.begin_move, log, move.target)
        logger.info("moving %s from %s to %s", log.name, source, move.target)
        try:
            while not move.is_committed:
                await self._catch_up(move, files.copy, is_throttled=True)
                # Nobody waits for this flush; for the one that follows, producers may.
                await self._in_thread(files.copy.flush)
                await self._catch_up(move, files.copy, is_throttled=True)
                await self._take_place(move, files)
                if not move.is_committed:
                    await move.pause(_PAUSE_S)
        finally:
            if move.is_committed:
                await self._finish(move, files)
            else:
                await self._in_thread(self._logs.abandon_move, files)
        logger.info("%s has moved from %s to %s", log.name, source, move.target)

    # Copying

    async def _catch_up(self, move: ReplicaMove, copy: PartitionLog, *, is_throttled: bool) -> None:
        """Copy until all that is left was appended during the last piece."""
        log = move.partition.log
        while True:
            self._check(move)
            if log.is_truncating:
                await move.pause(_TRUNCATION_PAUSE_S)
                continue
            if log.was_truncated or log.log_start_offset != copy.log_start_offset:
                lowest_end_offset = log.take_lowest_end_offset()
                move.truncations += lowest_end_offset is not None
                start_offset, high_watermark = log.log_start_offset, log.high_watermark
                await self._in_thread(_follow, copy, lowest_end_offset, start_offset, high_watermark)
            end_offset = log.log_end_offset
            size_bytes = await self._copy_next(move, copy, is_throttled=is_throttled)
            has_changed = log.is_truncating or log.was_truncated or size_bytes is None
            if not has_changed and (not size_bytes or copy.log_end_offset >= end_offset):
                return

    async def _copy_next(self, move: ReplicaMove, copy: PartitionLog, *, is_throttled: bool) -> int | None:
        """Copy the next piece; returns its size, or None if the log has changed meanwhile."""
        log = move.partition.log
        chunk_bytes = _CHUNK_BYTES
        while is_throttled and (pause_s := self._quota.pause_s()) > 0:
            await move.pause(pause_s)
            if log.is_truncating or log.was_truncated:
                return None
        if is_throttled:
            chunk_bytes = int(min(chunk_bytes, max(self._quota.rate, _CHUNK_BYTES_MIN)))
        try:
            chunk = await self._read_next(log, copy.log_end_offset, chunk_bytes)
            if chunk.size_bytes:
                await self._in_thread(_extend, copy, chunk)
        except (KafkaError, OSError):
            if not copy.is_offline and (log.is_truncating or log.was_truncated or _is_behind(copy, log)):
                return None
            raise
        if is_throttled:
            self._quota.record(chunk.size_bytes)
            move.unflushed_bytes += chunk.size_bytes
            if move.unflushed_bytes > _UNFLUSHED_BYTES_MAX:
                move.unflushed_bytes = 0
                await self._in_thread(copy.flush)
        return chunk.size_bytes

    async def _read_next(self, log: PartitionLog, offset: int, max_bytes: int) -> _Chunk:
        for _ in range(_COLD_LOOKUPS_MAX):
            try:
                return _read(log, offset, max_bytes)
            except NotInMemoryError as cold:
                await self._in_thread(cold.bring_in)
            if log.is_truncating:
                break
        # Pages are evicted as fast as they are read.
        raise LogStorageError(f"{log.name} can't be read at offset {offset}: its index doesn't stay in memory")

    # Taking the place

    async def _take_place(self, move: ReplicaMove, files: LogMove) -> None:
        """Let the copy take the place of its log, if it gets to the end."""
        log = move.partition.log
        await self._in_thread(log.hold_flushes)
        try:
            self._check(move)
            if not log.is_truncating:
                await self._take_place_now(move, files)
        finally:
            log.release_flushes()

    async def _take_place_now(self, move: ReplicaMove, files: LogMove) -> None:
        log, copy = move.partition.log, files.copy
        offset, producers, truncations = log.log_end_offset, log.packed_producers(), move.truncations
        log_start_offset = log.log_start_offset
        await self._catch_up(move, copy, is_throttled=False)
        if copy.log_end_offset < offset and _read(log, copy.log_end_offset, 1, in_memory=False).size_bytes:
            return
        if move.truncations != truncations or log.log_start_offset != log_start_offset:
            return
        if not await self._in_thread(self._logs.prepare_move, files, min(offset, copy.log_end_offset), producers):
            raise LogStorageError("a disk is full")
        for _ in range(_CHASES_MAX):
            await self._catch_up(move, copy, is_throttled=False)
            if move.truncations != truncations or log.log_start_offset != files.checkpointed_start_offset:
                return
            if self._copy_last(move, copy):
                move.is_committed = self._logs.commit_move(files)
                return

    def _copy_last(self, move: ReplicaMove, copy: PartitionLog) -> bool:
        """Copy what little is left; True if the copy has everything then. Nothing else happens meanwhile."""
        self._check(move)
        log = move.partition.log
        if log.is_truncating or log.was_truncated or log.is_offline:
            return False
        left_bytes = _LAST_BYTES
        while copy.log_end_offset < log.log_end_offset:
            try:
                chunk = _read(log, copy.log_end_offset, _LAST_BYTES)
            except NotInMemoryError:
                return False
            left_bytes -= chunk.size_bytes
            if left_bytes < 0:
                return False
            if not chunk.size_bytes:
                break  # the offsets before the end have no records
            _extend(copy, chunk)
        return True

    async def _finish(self, move: ReplicaMove, files: LogMove) -> None:
        self._on_moved(move.partition)
        try:
            await self._in_thread(self._logs.finish_move, files)
        except LogStorageError as error:
            # It took the directory offline, and said so.
            logger.debug("the move of %s: %s", files.log.name, error.message)
        self._on_moved(move.partition)

    def _check(self, move: ReplicaMove) -> None:
        move.check()
        if move.partition.unavailable:
            raise _MoveEndedError

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._loop.run_in_executor(self._threads, functools.partial(work, *args, **kwargs))


def _read(log: PartitionLog, offset: int, max_bytes: int, *, in_memory: bool = True) -> _Chunk:
    read = log.read(offset, max_bytes, limit_offset=log.log_end_offset, min_one_batch=True, in_memory=in_memory)
    return _Chunk(read.records, read.size_bytes, log.log_start_offset, log.high_watermark)


def _extend(copy: PartitionLog, chunk: _Chunk) -> None:
    """Append a part of the log to its copy."""
    records = memoryview(chunk.records.read() if isinstance(chunk.records, FileSlice) else chunk.records)
    try:
        copy.append_as_follower(records, leader_epoch=_ANY_EPOCH)
    except BelowStartError as error:
        # The log starts within its first batch.
        copy.truncate_fully_and_start_at(error.base_offset)
        copy.append_as_follower(records, leader_epoch=_ANY_EPOCH)
    _follow_start(copy, chunk.log_start_offset, chunk.high_watermark)


def _follow(copy: PartitionLog, lowest_end_offset: int | None, log_start_offset: int, high_watermark: int) -> None:
    """Truncate a copy as its log was, and let it begin where the log begins. Blocks."""
    if lowest_end_offset is not None:
        copy.truncate_to(lowest_end_offset)
    if not copy.log_start_offset <= log_start_offset <= copy.log_end_offset:
        copy.truncate_fully_and_start_at(log_start_offset)
    _follow_start(copy, log_start_offset, high_watermark)
    if copy.has_dropped_segments:
        copy.rename_dropped()


def _follow_start(copy: PartitionLog, log_start_offset: int, high_watermark: int) -> None:
    copy.advance_high_watermark(high_watermark)
    if copy.log_start_offset < log_start_offset <= copy.high_watermark:
        copy.set_log_start_offset(log_start_offset)


def _is_behind(copy: PartitionLog, log: PartitionLog) -> bool:
    """Whether the next records were deleted before they could be copied."""
    return copy.log_end_offset < log.log_start_offset
