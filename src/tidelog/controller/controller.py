"""The controller: the one writer of the cluster's metadata.

What always holds: changes are made one after another, first in the store and then in the image, so the image never
shows what could be lost; every image is published in the broker's `ClusterView`; a caller can be cancelled without
leaving the image and the store out of step. When a write fails in a way that leaves doubt about the store's state
(another controller was elected, the session ended, the store failed), this controller resigns and stands for election
again, which reloads everything. Requests that arrive meanwhile wait for the outcome: they proceed once this controller
is elected again, and are answered NOT_CONTROLLER if another one is or their time is up.

What a request changes is decided by pure functions in `changes`; the store's ways are in `ledger`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar

from tidelog.common.background import start_background, stop_background
from tidelog.common.clock import Clock
from tidelog.common.endpoint import Endpoint
from tidelog.common.ids import random_uuid, uuid_to_text
from tidelog.common.observable import Observable
from tidelog.common.settings import Settings
from tidelog.common.steps import Steps, run_through, run_with_pauses
from tidelog.controller import changes, layout
from tidelog.controller.broker_contact import BrokerContact
from tidelog.controller.changes import Change
from tidelog.controller.cluster_view import ClusterView
from tidelog.controller.image import EMPTY_IMAGE, BrokerInfo, ClusterImage, stages
from tidelog.controller.image_feed import ImageFeed
from tidelog.controller.ledger import Ledger, NotControllerError, Write
from tidelog.controller.loading import load
from tidelog.controller.membership import SESSION_TTL_MS, Member, Membership
from tidelog.controller.requests import (
    ConfigAlteration,
    ConfigReplacement,
    ConfigResult,
    DeleteResult,
    ElectionResult,
    ElectionType,
    IsrChange,
    IsrResult,
    NewPartitions,
    NewTopic,
    PartitionsResult,
    Reassignment,
    ReassignmentResult,
    TopicResult,
)
from tidelog.metadata.store import MetadataStoreError, Store
from tidelog.protocol import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

PRODUCER_IDS_PER_BLOCK: Final = 1000
"""As in Kafka: one write serves a thousand idempotent producers, and a crash loses at most as many of 2^63 ids."""

ELECTION_WAIT_S: Final = 10.0
"""How long a change waits for an election where its request sets no time-out: an election takes milliseconds, but a
machine that has just been woken up may be slow."""

PARTITIONS_IN_THREAD_MIN: Final = 500
"""Changes to fewer partitions than this take some milliseconds at most, and the way to a thread and back is longer."""

_TOPICS_AT_ONCE_MAX: Final = 500
"""A change of more topics is published in parts: all that a broker has to do about so many takes some milliseconds."""

STEP_BACK_S: Final = 10.0
"""How long a controller that stepped down leaves the role to others: every broker that lives stands within moments."""

_ELECTION_PAUSE_S: Final = 0.05
_RECOVERY_PAUSE_S: Final = 1.0

_NO_ENDPOINT: Final = Endpoint("", "", 0)

_T = TypeVar("_T")
Plan: TypeAlias = Callable[[ClusterImage], Change[_T] | Steps[Change[_T]]]
"""Computes a change, at once or in steps."""

_Result = TypeVar("_Result", TopicResult, DeleteResult, PartitionsResult, ConfigResult)


class _ResignedError(Exception):
    """The controller resigned while a change was waiting its turn; nothing was written."""


class Controller:
    """Answers requests that change the cluster's metadata, once `start` has returned."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: Settings,
        *,
        node_id: int,
        view: ClusterView | None = None,
        membership: Membership | None = None,
        endpoint: Endpoint = _NO_ENDPOINT,
        session_ttl_ms: float = SESSION_TTL_MS,
    ) -> None:
        """What it commits is published in `view`, for the parts of the same broker.

        It is elected by the session of `membership`, its own unless there is one already; other brokers reach it at
        `endpoint`.
        """
        self.view = ClusterView() if view is None else view
        self._store = store
        self._clock = clock
        self._settings = settings
        self._node_id = node_id
        self._endpoint = endpoint
        self._owns_membership = membership is None
        self.membership = Membership(store, node_id, ttl_ms=session_ttl_ms) if membership is None else membership
        # Who is controller, as far as this broker knows; None while nobody is, or it is not known yet.
        self.location: Observable[layout.ControllerLocation | None] = Observable(None)
        self.feed = ImageFeed()
        # Which of the brokers that follow its images are in touch.
        self.contact = BrokerContact()
        # Until when it leaves the role to others, in the event loop's time.
        self._stands_again_s = 0.0
        self._image = EMPTY_IMAGE
        self._next_producer_id = 0
        # Taken by every change, for as long as it is being written.
        self._lock = asyncio.Lock()
        self._ledger: Ledger | None = None
        # By which session this broker was elected last.
        self._elected: Member | None = None
        # Set while it is known who the controller is, or that there can't be one; changes wait for it.
        self._is_decided = asyncio.Event()
        # Why the last election came to nothing; None once one succeeded.
        self._election_error: MetadataStoreError | None = None
        self._is_closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._writing: set[asyncio.Task[Any]] = set()

    @property
    def image(self) -> ClusterImage:
        """The cluster as this controller last committed it."""
        return self._image

    @property
    def is_active(self) -> bool:
        """Whether this is the controller as far as it knows; only a write can tell for sure."""
        return self._ledger is not None

    @property
    def epoch(self) -> int:
        """The controller epoch of its election; -1 while it is not the controller."""
        return -1 if self._ledger is None else self._ledger.epoch

    async def wait_until_active(self) -> None:
        """Wait until this broker is elected, however long it takes."""
        await self.location.wait_for(lambda location: self.is_active)

    async def wait_until_resigned(self) -> None:
        """Wait until this broker is no longer the controller."""
        await self.location.wait_for(lambda location: not self.is_active)

    async def start(self) -> None:
        """Stand for election; returns once it is known who is controller, and if it is this one, the image is loaded.

        Raises MetadataStoreError. From then on it stands again whenever there is no controller, until it is closed.
        """
        if self._owns_membership:
            await self.membership.join()
        try:
            while not self._is_decided.is_set():
                await self._stand()
        except BaseException:
            await self.close()
            raise
        self._keeper = start_background(self._stay_candidate(), "controller")

    async def close(self) -> None:
        """Finish pending writes, resign immediately, and answer NOT_CONTROLLER from now on."""
        self._is_closed = True
        await stop_background(self._keeper)
        self._is_decided.set()
        async with self._lock:
            ledger, self._ledger = self._ledger, None
            self.feed.stop()
            self.location.set(None)
            if ledger is not None:
                await self._release(ledger)
        if self._owns_membership:
            await self.membership.close()

    async def register_broker(self, broker: BrokerInfo, *, clean_shutdown: bool) -> int:
        """Register a broker that has started; returns its new epoch. Raises KafkaError NOT_CONTROLLER."""

        def plan(image: ClusterImage) -> Change[int]:
            return changes.register_broker(broker, image, self._settings, clean_shutdown=clean_shutdown)

        return await self._commit(plan)

    async def fence_brokers(self, node_ids: Collection[int]) -> None:
        """Fence brokers that are gone: others lead what they led. Raises KafkaError NOT_CONTROLLER."""
        fenced = await self._commit(lambda image: changes.fence_brokers(node_ids, image, self._settings))
        if fenced:
            logger.info("brokers %s are gone; others lead what they led", fenced)

    async def shut_down_broker(self, node_id: int, broker_epoch: int) -> bool:
        """Prepare a broker's controlled shutdown; True once it may stop.

        Ask again while False: it leads partitions for which no other replica is in sync yet. A
        broker that stops all the same leaves these offline until another one of their replicas may lead. Raises
        KafkaError NOT_CONTROLLER or STALE_BROKER_EPOCH.
        """
        return await self._commit(lambda image: changes.shut_down_broker(node_id, broker_epoch, image, self._settings))

    async def alter_partition(self, node_id: int, broker_epoch: int, asked: Sequence[IsrChange]) -> list[IsrResult]:
        """Change ISRs as their leader asks; one result each, in the order asked.

        Raises KafkaError NOT_CONTROLLER or STALE_BROKER_EPOCH.
        """
        return await self._commit_or_refuse(
            lambda image: changes.alter_partition(node_id, broker_epoch, asked, image, self._settings)
        )

    async def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Sequence[tuple[str, int]] | None,
        *,
        timeout_s: float = ELECTION_WAIT_S,
    ) -> list[ElectionResult]:
        """Elect new leaders for these partitions (None: for all); raises KafkaError if that can't be written.

        One result each, in the order asked; when asked for all, those that need no election have none.
        """
        return await self._commit_or_refuse(
            lambda image: changes.elect_leaders(election_type, partitions, image, self._settings), timeout_s
        )

    async def alter_reassignments(
        self,
        asked: Sequence[Reassignment],
        *,
        allow_factor_change: bool = True,
        timeout_s: float = ELECTION_WAIT_S,
    ) -> list[ReassignmentResult]:
        """Move partitions to other replicas, or cancel that; one result each, in the order asked.

        A partition has moved once its new replicas are in sync, which AlterPartition notices. Raises KafkaError if it
        can't be written.
        """
        return await self._commit_or_refuse(
            lambda image: changes.alter_reassignments(
                asked, image, self._settings, allow_factor_change=allow_factor_change
            ),
            timeout_s,
        )

    async def unregister_broker(self, node_id: int) -> None:
        """Forget a broker that is gone for good; raises KafkaError."""
        await self._commit_or_refuse(lambda image: changes.unregister_broker(node_id, image))

    async def balance_leaders(self) -> None:
        """Give leaderships back to the brokers that should have them; does nothing where this is not the controller."""
        elected = changes.ELECTIONS_PER_BALANCING_MAX
        while self.is_active and elected == changes.ELECTIONS_PER_BALANCING_MAX:
            try:
                elected = await self._commit_or_refuse(lambda image: changes.balance_leaders(image, self._settings))
            except KafkaError as error:
                logger.info("leaders stay where they are until the next check: %s", error)
                return
            if elected:
                logger.info("%d partitions are led by their preferred leaders again", elected)

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids that are never given out again. Raises KafkaError NOT_CONTROLLER."""

        def plan(image: ClusterImage) -> Change[range]:
            block = range(self._next_producer_id, self._next_producer_id + PRODUCER_IDS_PER_BLOCK)
            # Taken at once: a block whose write fails is skipped, never handed out twice.
            self._next_producer_id = block.stop
            return Change(block, [Write(layout.PRODUCER_IDS, {"next": block.stop})], image)

        return await self._commit(plan)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_s: float = ELECTION_WAIT_S
    ) -> list[TopicResult]:
        """One result a name, in the order asked; an election is waited for until the time-out, as in all changes."""
        return await self._change(
            lambda image: changes.create_topics(topics, image, self._settings, self._clock.now_ms()),
            validate_only,
            timeout_s,
            partitions=sum(max(new.partitions, len(new.assignments)) for new in topics),
        )

    async def delete_topics(
        self, topics: Sequence[str | uuid.UUID], *, timeout_s: float = ELECTION_WAIT_S
    ) -> list[DeleteResult]:
        """One result for every name or topic id, in the order asked."""
        return await self._change(lambda image: changes.delete_topics(topics, image), timeout_s=timeout_s)

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False, timeout_s: float = ELECTION_WAIT_S
    ) -> list[PartitionsResult]:
        """One result a name, in the order asked."""
        return await self._change(
            lambda image: changes.create_partitions(topics, image, self._settings),
            validate_only,
            timeout_s,
            partitions=sum(new.count for new in topics),
        )

    async def alter_configs(
        self, replacements: Sequence[ConfigReplacement], *, validate_only: bool = False
    ) -> list[ConfigResult]:
        """Replace all overrides of each resource; one result a resource, in the order asked."""
        return await self._change(
            lambda image: changes.alter_configs(replacements, image, self._settings), validate_only
        )

    async def incremental_alter_configs(
        self, alterations: Sequence[ConfigAlteration], *, validate_only: bool = False
    ) -> list[ConfigResult]:
        """Change single overrides of each resource; one result a resource, in the order asked."""
        return await self._change(
            lambda image: changes.alter_configs(alterations, image, self._settings), validate_only
        )

    async def _change(
        self,
        plan: Callable[[ClusterImage], Steps[Change[list[_Result]]]],
        validate_only: bool = False,
        timeout_s: float = ELECTION_WAIT_S,
        *,
        partitions: int = 0,
    ) -> list[_Result]:
        """Carry out a change with a result an item; items that could not be written are refused, not raised.

        `partitions` is how many will be created.
        """
        if validate_only:
            return await self._results(plan, partitions)
        try:
            return await self._commit(plan, timeout_s, partitions)
        except KafkaError as error:
            return [_refused(result, error) for result in await self._results(plan, partitions)]
        except MetadataStoreError as error:
            # The disk is full or failing. Some of the change may have been written; a retry finds out.
            refusal = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
            return [_refused(result, refusal) for result in await self._results(plan, partitions)]

    async def _results(
        self, plan: Callable[[ClusterImage], Steps[Change[list[_Result]]]], partitions: int
    ) -> list[_Result]:
        """What a change would come to now."""
        return (await self._plan(plan, partitions)).results

    async def _commit_or_refuse(
        self, plan: Callable[[ClusterImage], Change[_T]], timeout_s: float = ELECTION_WAIT_S
    ) -> _T:
        """Carry out a change; a failure of any kind is a KafkaError, for a request that has one error for all of it."""
        try:
            return await self._commit(plan, timeout_s)
        except MetadataStoreError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    async def _commit(self, plan: Plan[_T], timeout_s: float = ELECTION_WAIT_S, partitions: int = 0) -> _T:
        """Carry out a change; raises KafkaError NOT_CONTROLLER, or MetadataStoreError."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            await self._wait_until_decided(deadline_s)
            # Finished even if its caller goes away: the store would have it, and the image would not.
            task = asyncio.get_running_loop().create_task(self._write_change(plan, partitions))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
            with contextlib.suppress(_ResignedError):
                return await asyncio.shield(task)

    async def _wait_until_decided(self, deadline_s: float) -> None:
        """Wait until this is the controller; raises when it can't be, or not in time."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._is_decided.wait()
        except TimeoutError:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "No controller was elected in time.") from None
        if self._is_closed:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is shutting down.")
        if self._election_error is not None:
            raise MetadataStoreError(str(self._election_error)) from self._election_error
        if self._ledger is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")

    async def _write_change(self, plan: Plan[_T], partitions: int) -> _T:
        async with self._lock:
            ledger = self._ledger
            if ledger is None:
                raise _ResignedError
            change = await self._plan(plan, partitions)
            if change.writes:
                try:
                    written = await ledger.write(change.writes)
                except NotControllerError as error:
                    self._resign(str(error))
                    raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error
                except MetadataStoreError as error:
                    self._resign(str(error))
                    raise
                old, self._image = self._image, replace(change.image, revision=written.revision)
                self.feed.add(self._image, written)
                if len(change.writes) <= _TOPICS_AT_ONCE_MAX:
                    self.view.publish(self._image)
                else:
                    await self._publish_in_parts(old)
            return change.results

    async def _plan(self, plan: Plan[_T], partitions: int) -> Change[_T]:
        """Compute a change of the current image with pauses.

        In a thread where the image is large, as a change may go through all of it, or where many partitions are made.

        The caller that writes the change has the lock, so nothing else changes the image meanwhile.
        """
        image = self._image
        if max(image.partitions_count, partitions) >= PARTITIONS_IN_THREAD_MIN:
            return await asyncio.to_thread(_computed, plan, image)
        planned = plan(image)
        return planned if isinstance(planned, Change) else await run_with_pauses(planned)

    async def _publish_in_parts(self, old: ClusterImage) -> None:
        """Make a new image known that may have thousands of other topics; others have a turn in between."""
        for image in stages(old, self._image, _TOPICS_AT_ONCE_MAX):
            self.view.publish(image)
            await asyncio.sleep(0)

    # Elections

    def _resign(self, reason: str) -> None:
        logger.warning("no longer the controller: %s", reason)
        self._ledger = None
        self.feed.stop()
        self._is_decided.clear()
        self.location.set(None)

    async def _stay_candidate(self) -> None:
        """Stand for election whenever there is no controller."""
        while True:
            try:
                if self._ledger is not None:
                    await self._wait_for_loss()
                else:
                    await self._wait_for_vacancy()
                    self._is_decided.clear()
                await self._leave_to_others()
                await self._stand()
            except MetadataStoreError as error:
                logger.error("can't stand for election: %s", error)
                self._election_error = error
                self._is_decided.set()
                await asyncio.sleep(_RECOVERY_PAUSE_S)

    async def step_down(self, reason: str) -> None:
        """Give the role up, and leave it to others for a while; does nothing where this is not the controller."""
        # Finished even if its caller goes away, as whoever works for the controller does once it has resigned: nobody
        # else can take the role before it is released.
        task = asyncio.get_running_loop().create_task(self._step_down(reason))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        await asyncio.shield(task)

    async def _step_down(self, reason: str) -> None:
        async with self._lock:
            ledger = self._ledger
            if ledger is None:
                return
            self._stands_again_s = asyncio.get_running_loop().time() + STEP_BACK_S
            self._resign(reason)
            await self._release(ledger)

    async def _leave_to_others(self) -> None:
        """After `step_down`, wait until another broker is the controller, or nobody wanted to be for some time."""
        pause_s = self._stands_again_s - asyncio.get_running_loop().time()
        if pause_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wait_for_other()

    async def _wait_for_other(self) -> None:
        member = self.membership.current
        async with contextlib.aclosing(self._store.watch(layout.CONTROLLER)) as snapshots:
            async for snapshot in snapshots:
                rec = snapshot.records.get(layout.CONTROLLER)
                if rec is not None and (member is None or rec.owner != member.session.id):
                    return

    async def _wait_for_loss(self) -> None:
        """Wait until this broker is no longer the controller, by its own decision or because its session ended."""
        member = self._elected
        assert member is not None
        losses = [asyncio.ensure_future(member.wait_until_lost()), asyncio.ensure_future(self.wait_until_resigned())]
        try:
            await asyncio.wait(losses, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for loss in losses:
                loss.cancel()
        async with self._lock:
            if self._ledger is not None:
                self._resign("its session ended")

    async def _wait_for_vacancy(self) -> None:
        """Wait until nobody is the controller; meanwhile, it is known who is."""
        async with contextlib.aclosing(self._store.watch(layout.CONTROLLER)) as snapshots:
            async for snapshot in snapshots:
                rec = snapshot.records.get(layout.CONTROLLER)
                member = self.membership.current
                if rec is None or (member is not None and rec.owner == member.session.id):
                    self.location.set(None)
                    return
                self.location.set(layout.parse_controller(layout.decode(rec.value)))
                # Changes that wait for an election need not wait any longer.
                self._election_error = None
                self._is_decided.set()

    async def _stand(self) -> None:
        """Stand for election once; decided or not, there is a next time."""
        member = await self.membership.wait()
        try:
            location = layout.ControllerLocation(self._node_id, -1, *self._endpoint[1:])
            ledger = await Ledger.elect(self._store, member.session, location)
            if ledger is None:
                self._election_error = None
                self._is_decided.set()
                return
            try:
                await self._take_over(ledger, member)
            except MetadataStoreError:
                # Perhaps another broker can do what this one can't.
                await self._release(ledger)
                raise
        except NotControllerError as error:
            logger.info("repeating the election: %s", error)
            if error.is_session_lost:
                member.report_lost()
            await asyncio.sleep(_ELECTION_PAUSE_S)

    async def _take_over(self, ledger: Ledger, member: Member) -> None:
        loaded = await load(ledger, self._node_id)
        image = loaded.image
        writes = [Write(key, None) for key in loaded.garbage]
        if not image.cluster_id:
            image = replace(image, cluster_id=uuid_to_text(random_uuid()))
            writes.append(Write(layout.CLUSTER, {"id": image.cluster_id, "version": layout.LAYOUT_VERSION}))
        revision = (await ledger.write(writes)).revision if writes else ledger.elected_rev
        async with self._lock:
            self._next_producer_id = loaded.next_producer_id
            self._image = replace(image, revision=revision)
            self._ledger = ledger
            self._elected = member
            self._election_error = None
            self._is_decided.set()
            self.contact.forget()
            self.feed.start(self._image, loaded.deleted_topics)
            self.view.publish(self._image, loaded.deleted_topics)
            self.location.set(layout.ControllerLocation(self._node_id, ledger.epoch, *self._endpoint[1:]))

    async def _release(self, ledger: Ledger) -> None:
        """Let others stand at once, rather than after the end of this broker's session."""
        try:
            await ledger.release()
        except MetadataStoreError as error:
            logger.warning("the role of controller stays taken until this broker's session ends: %s", error)


def _computed(plan: Plan[_T], image: ClusterImage) -> Change[_T]:
    planned = plan(image)
    return planned if isinstance(planned, Change) else run_through(planned)


def _refused(result: _Result, error: KafkaError) -> _Result:
    """The same item as not done; a refusal that it had for itself stays if it comes from the controller."""
    if result.error is not ErrorCode.NONE and error.code is not ErrorCode.NOT_CONTROLLER:
        return result
    if isinstance(result, TopicResult):
        return TopicResult(result.name, error=error.code, message=error.message)
    return replace(result, error=error.code, message=error.message)
