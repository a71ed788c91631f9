"""Gives assigned partitions a position: the committed offset, or else whatever `auto.offset.reset` says.

What always holds: a seek by the user wins over a pending lookup. After a leader change, a partition is not fetched
before the new leader has confirmed that its log still holds what was read (KIP-320). Lookups that fail for a temporary
reason are retried with pauses. Permanent errors are raised by the next `poll`, once per attempt, and not at all if the
user has moved the partitions before that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tidelog.client.consumer.fetcher import log_crash, tell_crash
from tidelog.client.consumer.offsets_lookup import (
    LATEST_TIMESTAMP,
    EpochEnd,
    epoch_ends,
    list_offsets,
)
from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.consumer.subscription import PartitionState, SubscriptionState
from tidelog.client.errors import ClientError, LogTruncationError, NoOffsetError, RetriableError
from tidelog.client.network.cluster import Cluster
from tidelog.client.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from tidelog.common.clock import Clock

logger = logging.getLogger(__name__)

Committed = Callable[[Iterable[TopicPartition]], Awaitable[dict[TopicPartition, OffsetAndMetadata | None]]]


class PositionKeeper:
    """Looks up positions in the background."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        subscription: SubscriptionState,
        clock: Clock,
        *,
        committed: Committed | None,
        on_found: Callable[[], None],
        on_error: Callable[[], None],
        on_crash: Callable[[BaseException], None] = log_crash,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._subscription = subscription
        self._clock = clock
        self._committed = committed
        self._on_found = on_found
        self._on_error = on_error
        self._failures = 0
        self.errors: deque[ClientError] = deque()  # for the next poll
        self._versions_told_of: dict[ClientError, dict[TopicPartition, int]] = {}
        self._event = asyncio.Event()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda task: tell_crash(task, on_crash))

    def wake(self) -> None:
        self._event.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def take_error(self) -> ClientError | None:
        """The next error to raise; None if a seek or a new assignment has resolved it."""
        error = self.errors.popleft()
        versions = self._versions_told_of.pop(error, None)
        if versions is None or any(self._is_at(*each) for each in versions.items()):
            return error
        return None

    def _is_at(self, topic_partition: TopicPartition, version: int) -> bool:
        subscription = self._subscription
        return subscription.is_assigned(topic_partition) and subscription.state(topic_partition).version == version

    def _error_about(self, error: ClientError, versions: dict[TopicPartition, int]) -> ClientError:
        self._versions_told_of[error] = versions
        return error

    @property
    def has_work(self) -> bool:
        return bool(self._subscription.needs_position() or self._subscription.needs_reset() or self._unchecked())

    async def _run(self) -> None:
        while True:
            self._event.clear()
            try:
                has_asked = await self._look_up()
                if self.has_work:  # some were answered, others not
                    self._failures += 1
                    self._on_found()
                    await asyncio.sleep(self._settings.cluster.retry.pause_s(self._failures))
                    continue
                if has_asked:  # else some may only be waiting for metadata
                    self._failures = 0
            except RetriableError as error:
                self._failures += 1
                logger.info("could not determine the position to read from, retrying: %s", error)
                await asyncio.sleep(self._settings.cluster.retry.pause_s(self._failures))
                continue
            except ClientError as error:
                self.errors.append(error)
                self._on_error()
            self._on_found()
            # The poll that raises the error wakes us, so an error does not occur faster than it is raised.
            await self._event.wait()

    async def _look_up(self) -> bool:
        """Ask whatever is to be asked; False if that is nothing."""
        has_asked = False
        if needing := self._subscription.needs_position():
            has_asked = True
            await self._take_committed(needing)
        if resetting := self._subscription.needs_reset():
            has_asked = True
            await self._reset(resetting)
        if unchecked := self._unchecked():
            has_asked = True
            await self._check_epochs(unchecked)
        return has_asked

    # Committed offsets

    async def _take_committed(self, partitions: list[TopicPartition]) -> None:
        states = {key: self._subscription.state(key) for key in partitions if self._subscription.is_assigned(key)}
        versions = {key: state.version for key, state in states.items()}
        found: Mapping[TopicPartition, OffsetAndMetadata | None] = {}
        if self._committed is not None:
            found = await self._committed(partitions)
        missing: list[TopicPartition] = []
        for topic_partition, version in versions.items():
            committed = found.get(topic_partition)
            if committed is not None:
                self._subscription.found(topic_partition, version, committed.offset, committed.leader_epoch)
            elif self._settings.reset is not None:
                self._subscription.request_reset(topic_partition, self._settings.reset, version)
            else:
                missing.append(topic_partition)
        if missing:
            names = ", ".join(str(topic_partition) for topic_partition in sorted(missing))
            error = NoOffsetError(
                f"no offset is committed for {names}, and auto.offset.reset is none; commit or seek to one, or choose "
                "earliest or latest"
            )
            raise self._error_about(error, {key: versions[key] for key in missing})

    # Resets

    async def _reset(self, states: list[PartitionState]) -> None:
        versions = {state.topic_partition: state.version for state in states}
        epochs = {state.topic_partition: self._cluster.metadata.leader_epoch(state.topic_partition) for state in states}
        now_ms = self._clock.now_ms()
        timestamps = {
            state.topic_partition: state.reset.timestamp_at(now_ms) for state in states if state.reset is not None
        }
        found = await self._list(timestamps)
        # No record is recent enough for the duration: start with the next one that arrives.
        ends = [topic_partition for topic_partition, offset in found.items() if offset.offset < 0]
        if ends:
            for topic_partition in ends:
                del found[topic_partition]
            found |= await self._list(dict.fromkeys(ends, LATEST_TIMESTAMP))
        for topic_partition, offset in found.items():
            self._subscription.found(
                topic_partition,
                versions[topic_partition],
                offset.offset,
                offset.leader_epoch,
                checked_leader_epoch=epochs[topic_partition],
            )

    async def _list(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Partial, so that a partition without a leader does not hold up the others."""
        return await list_offsets(
            self._cluster, timestamps, is_read_committed=self._settings.is_read_committed, is_partial=True
        )

    # Leader epochs

    def _unchecked(self) -> list[PartitionState]:
        """Partitions with a new leader that has not confirmed yet that it holds what was read."""
        unchecked = []
        for state in self._subscription.states():
            if state.fetch_offset < 0:
                continue
            leader_epoch = self._cluster.metadata.leader_epoch(state.topic_partition)
            if state.fetch_epoch >= 0 and leader_epoch > state.checked_leader_epoch:
                unchecked.append(state)
        return unchecked

    async def _check_epochs(self, states: list[PartitionState]) -> None:
        metadata = self._cluster.metadata
        before = {
            state.topic_partition: (state.version, state.fetch_offset, metadata.leader_epoch(state.topic_partition))
            for state in states
        }
        ends = await epoch_ends(self._cluster, {state.topic_partition: state.fetch_epoch for state in states})
        truncated: list[str] = []
        versions: dict[TopicPartition, int] = {}
        for state in states:
            version, offset, leader_epoch = before[state.topic_partition]
            if state.version != version or state.fetch_offset != offset or state.topic_partition not in ends:
                continue
            end = ends[state.topic_partition]
            if end is None:
                state.checked_leader_epoch = leader_epoch
            elif end.end_offset >= offset and end.leader_epoch >= 0:
                state.checked_leader_epoch = end.current_leader_epoch
            elif not self._step_back(state, version, end):
                truncated.append(f"{state.topic_partition} at {max(end.end_offset, 0)}")
                versions[state.topic_partition] = version
        if truncated:
            error = LogTruncationError(
                f"a new leader has less of the log than was read, for {', '.join(truncated)}: records were lost; seek "
                "to an offset to continue from"
            )
            raise self._error_about(error, versions)

    def _step_back(self, state: PartitionState, version: int, end: EpochEnd) -> bool:
        """Continue from where the logs diverge; False if the user has to decide."""
        logger.warning(
            "partition %s was truncated to offset %d by its new leader", state.topic_partition, end.end_offset
        )
        if end.end_offset >= state.position >= 0:
            # Only records that were fetched ahead are gone.
            return self._found(state, version, state.position, end)
        if self._settings.reset is None:
            return False
        if end.end_offset < 0 or end.leader_epoch < 0:
            return self._subscription.request_reset(state.topic_partition, self._settings.reset, version)
        return self._found(state, version, end.end_offset, end)

    def _found(self, state: PartitionState, version: int, offset: int, end: EpochEnd) -> bool:
        return self._subscription.found(
            state.topic_partition, version, offset, end.leader_epoch, checked_leader_epoch=end.current_leader_epoch
        )
