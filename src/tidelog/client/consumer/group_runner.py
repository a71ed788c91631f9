"""A consumer's membership in its group, run on the event loop: heartbeats, rebalances, commits.

How a consumer uses it. `poll()` first calls `poll_started(now_ms)`, then looks at `has_turn`: a rebalance step, or an
automatic commit, that may only happen while the user is inside `poll()`. While it is true, `poll()` awaits
`take_turn(timeout_s)` on the loop and returns no records; `call_user` calls the listeners from there. A `poll()` that
has to wait for records calls `poll_waits`, and `poll_ended` when it returns, so that its waiting does not count against
`max.poll.interval.ms`. `wake` is called on the loop when `has_turn` becomes true, so that a waiting `poll()` notices.

What always holds: heartbeats continue while the user's code runs. The assignment in `subscription` changes only within
a turn, so the records of a poll belong to the assignment that the user was told about. Only `poll_started`,
`poll_waits`, `poll_ended`, `has_turn` and `group_metadata` may be used from other threads than the loop's. Patterns are
matched by the owner of the subscription, which then calls `subscription_changed`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from tidelog.client.consumer.commits import CommitCallback, GroupOffsets, Offsets
from tidelog.client.consumer.group_settings import GroupSettings, choose_assignors
from tidelog.client.consumer.leaving import leave_group
from tidelog.client.consumer.member_loop import MemberLoop
from tidelog.client.consumer.membership import Identity
from tidelog.client.consumer.membership_classic import ClassicConfig, ClassicMember
from tidelog.client.consumer.membership_consumer import ConsumerConfig, ConsumerMember
from tidelog.client.consumer.rebalance import UserCall
from tidelog.client.consumer.user_turns import UserTurns
from tidelog.client.errors import ClientError, FatalError, PollIntervalExceededError
from tidelog.client.network.backoff import Backoff
from tidelog.client.network.routing import Coordinator, KeyType
from tidelog.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tidelog.common.clock import Clock, SystemClock
from tidelog.protocol import ErrorCode

if TYPE_CHECKING:
    from tidelog.client.consumer.subscription import SubscriptionState
    from tidelog.client.network.cluster import Cluster

__all__ = ["CommitCallback", "GroupRunner", "GroupSettings", "UserCall"]

logger = logging.getLogger(__name__)

# How long the leave request may take if the user has stopped polling; nobody waits for it.
_SILENT_LEAVE_S = 5.0
# A deleted topic may be created again, but no rebalance waits for that.
_TOPIC_IS_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
# How often a waiting poll is checked.
_POLL_CHECK_S = 1.0


class GroupRunner:
    """The group side of one consumer."""

    def __init__(
        self,
        cluster: Cluster,
        settings: GroupSettings,
        subscription: SubscriptionState,
        call_user: Callable[[UserCall], Awaitable[None]],
        *,
        wake: Callable[[], None] = lambda: None,
        on_automatic_commit: Callable[[Offsets], None] = lambda offsets: None,
        clock: Clock | None = None,
    ) -> None:
        """`call_user` makes the call in the user's thread and ends with it, returning or raising what it did.
        `on_automatic_commit` is called after every automatic commit.
        """
        self._settings = settings
        self._subscription = subscription
        self._wake = wake
        self._on_automatic_commit = on_automatic_commit
        self._clock = clock or SystemClock()
        self._coordinator = Coordinator(cluster, KeyType.GROUP, settings.group_id)
        self._offsets = GroupOffsets(
            self._coordinator,
            self,
            require_stable=settings.isolation_level == "read_committed",
            reads_as_member=settings.group_protocol == "consumer",
        )
        self._member = _make_member(settings)
        self._loop = MemberLoop(self._member, self._coordinator, self._clock, self._changed)
        self._turns = UserTurns(
            self._member, subscription, call_user, self._commit_handed_out, self._clock, self._turn_ended
        )
        self._event_loop = asyncio.get_running_loop()
        self._is_started = False
        self._is_closed = False
        self._watch: asyncio.Task[None] | None = None
        self._commit_timer: asyncio.TimerHandle | None = None
        self._silent_leave: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        # Also read and written from the user's thread; each is a single plain value.
        self._polled_at_ms = self._now_ms()
        self._poll_waits = False
        self._waits_for_user = False
        self._commit_is_due = False
        self._next_commit_ms = self._polled_at_ms + settings.auto_commit_interval_ms
        self._commit_timer_is_set = False
        self._error: ClientError | None = None
        self._told_error: ClientError | None = None  # an error the user already knows, until the member knows that
        self._silence: PollIntervalExceededError | None = None
        self._was_member = False

    # The membership

    def start(self) -> None:
        """Start joining; called once there is a subscription by name or pattern, never for manual assignments."""
        self._is_started = True
        self._polled_at_ms = self._now_ms()
        self._tell_subscription()
        self._loop.start()
        if self._watch is None:
            self._watch = self._event_loop.create_task(self._watch_polls())

    def subscription_changed(self) -> None:
        """The subscription changed, or it matches other topics now; the member rejoins."""
        if self._is_started:
            self._tell_subscription()
            self._changed()
            self._loop.nudge()

    def _tell_subscription(self) -> None:
        pattern = self._subscription.pattern
        self._member.subscribe(self._subscription.topics, None if pattern is None else _re2_of(pattern))

    def request_rejoin(self, reason: str) -> None:
        """Ask for a rebalance, as `enforce_rebalance()` does."""
        self._member.request_rejoin(reason)
        self._changed()
        self._loop.nudge()

    async def unsubscribe(self) -> None:
        """Tell the listener and leave the group; the runner may be started again.

        The caller clears the subscription afterwards, so that the listener still sees the assignment.
        """
        if self._is_started:
            await self._leave(self._settings.default_api_timeout_ms / 1000, "the consumer unsubscribed", tells=True)
            self._turns.raise_listener_error()

    async def close(self, *, leave: bool = True, timeout_s: float = 30.0) -> None:
        """Commit what is due, tell the listener, leave the group; finishes in time unless a listener takes longer.

        Without `leave` the coordinator is not told, just as static members never tell it in the classic protocol.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            deadline_s = self._now_ms() / 1000 + timeout_s
            if self._is_started:
                await self._leave(timeout_s, "the consumer was closed", tells=leave)
            else:
                await self._commit_handed_out(timeout_s)
            remaining_s = max(deadline_s - self._now_ms() / 1000, 0.0)
            await _within(remaining_s, self._offsets.drain())
            if self._silent_leave is not None:
                await asyncio.wait({self._silent_leave}, timeout=remaining_s)
        finally:
            await self._stop_tasks()
            self._offsets.close()
        self._turns.raise_listener_error()

    async def _leave(self, timeout_s: float, reason: str, *, tells: bool) -> None:
        deadline_s = self._now_ms() / 1000 + timeout_s
        await self._turns.give_up_all(timeout_s)
        self._is_started = False
        await self._loop.stop()
        identity = self._member.identity
        may_tell = tells and identity.member_id != "" and not self._member.is_stale
        request = self._member.leave_request() if isinstance(self._member, ConsumerMember) else None
        self._member.left()
        self._changed()
        remaining_s = max(deadline_s - self._now_ms() / 1000, 0.0)
        if may_tell and remaining_s > 0:
            await leave_group(self._offsets, self._settings.group_id, identity, request, reason, remaining_s)

    async def _stop_tasks(self) -> None:
        await self._loop.stop()
        self._turns.cancel()
        if self._commit_timer is not None:
            self._commit_timer.cancel()
        tasks = [task for task in (self._watch, self._silent_leave) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._watch = self._silent_leave = None

    # Inside poll()

    def poll_started(self, now_ms: float) -> None:
        """Every poll calls this, from the user's thread: restarts `max.poll.interval.ms`; raises fatal errors."""
        self._polled_at_ms = now_ms
        if now_ms >= self._next_commit_ms and self._settings.enable_auto_commit:
            self._commit_is_due = True
        if self._error is not None and not self._waits_for_user:
            self._raise_error()

    def poll_waits(self) -> None:
        """The poll waits for records: until `poll_ended` the time does not count, and commits wake it up."""
        self._poll_waits = True
        if self._settings.enable_auto_commit and not self._commit_timer_is_set:
            self._commit_timer_is_set = True  # one timer at a time, so this costs something only once per interval
            self._event_loop.call_soon_threadsafe(self._set_commit_timer)

    def poll_ended(self, now_ms: float) -> None:
        """The waiting poll returns to the user's code."""
        self._polled_at_ms = now_ms
        self._poll_waits = False

    @property
    def has_turn(self) -> bool:
        """Whether something waits for the user to be inside poll(); cheap, from any thread."""
        return self._waits_for_user or self._commit_is_due or self._error is not None

    async def take_turn(self, timeout_s: float | None = None) -> None:
        """Do what waits for the user; returns early when the time is up, and `has_turn` stays true.

        A listener that has been called is waited for. Raises what a listener raised, and fatal errors.
        """
        if self._commit_is_due:
            self._commit_is_due = False
            self._commit_automatically()
        try:
            await self._turns.take(timeout_s)
        finally:
            if self._member.is_stale and not self._turns.is_waiting:
                self._member.poll_resumed()
            self._turn_ended()
        self._turns.raise_listener_error()
        if self._error is not None and not self._waits_for_user:
            self._raise_error()

    def _raise_error(self) -> None:
        error = self._error
        assert error is not None
        if not isinstance(error, FatalError):
            self._told_error, self._error = error, None
            self._event_loop.call_soon_threadsafe(self._error_taken)
        raise error.with_traceback(None)

    def _error_taken(self) -> None:
        self._member.error_taken()
        self._told_error = None
        self._changed()
        self._loop.nudge()

    def _turn_ended(self) -> None:
        self._changed()
        self._loop.nudge()

    def _changed(self) -> None:
        """The member changed: see whether the user's thread or a waiter for the membership is needed."""
        had_turn = self.has_turn
        self._waits_for_user = self._turns.is_waiting or (self._is_started and self._member.is_stale)
        self._error = None if self._member.error is self._told_error else self._member.error
        if self._member.is_stable:
            self._was_member = True
            self._silence = None
        news, self._news = self._news, asyncio.Event()
        news.set()
        if self.has_turn and not had_turn:
            self._wake()

    # When the user does not poll

    async def _watch_polls(self) -> None:
        longest_ms = self._settings.max_poll_interval_ms
        while True:
            left_ms = self._polled_at_ms + longest_ms - self._now_ms()
            if self._poll_waits or not self._is_started or self._member.is_stale:
                await asyncio.sleep(min(longest_ms / 1000, _POLL_CHECK_S))
            elif left_ms > 0:
                await asyncio.sleep(left_ms / 1000)
            else:
                self._leave_for_silence(longest_ms - left_ms)

    def _leave_for_silence(self, silent_ms: float) -> None:
        self._silence = PollIntervalExceededError(
            f"poll() was not called for {silent_ms / 1000:.1f} s, longer than "
            f"max.poll.interval.ms={self._settings.max_poll_interval_ms}, so the consumer left the group and its "
            "partitions went to other members; process records faster, poll fewer at a time (max.poll.records) or "
            "raise max.poll.interval.ms"
        )
        logger.warning("group %s: %s", self._settings.group_id, self._silence)
        identity = self._member.identity
        request = self._member.leave_request() if isinstance(self._member, ConsumerMember) else None
        tells = self._member.poll_expired()
        self._loop.drop_connection()
        if tells:
            self._silent_leave = asyncio.get_running_loop().create_task(
                leave_group(
                    self._offsets,
                    self._settings.group_id,
                    identity,
                    request,
                    "max.poll.interval.ms was exceeded",
                    _SILENT_LEAVE_S,
                )
            )
        self._changed()
        self._loop.nudge()

    # Offsets

    async def commit(self, offsets: Offsets, *, timeout_s: float | None = None) -> None:
        """Commit and wait; retries temporary errors. Raises CommitFailedError if the generation is gone."""
        await self._offsets.commit(offsets, timeout_s=timeout_s)

    def commit_nowait(self, offsets: Offsets, on_done: CommitCallback | None = None) -> None:
        """Commit without waiting and without retries; `on_done` is called on the loop in the order of the commits."""
        self._offsets.commit_nowait(offsets, on_done)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None where there is none."""
        return await self._offsets.committed(partitions, timeout_s=timeout_s)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The identity of this member, for a transactional producer that commits its offsets."""
        identity = self._member.identity if self._is_started else Identity(instance_id=self._settings.group_instance_id)
        member_id = identity.member_id if identity.is_member else ""
        return ConsumerGroupMetadata(self._settings.group_id, identity.generation, member_id, identity.instance_id)

    def _commit_automatically(self) -> None:
        """The user is inside poll(), so everything returned before has been processed."""
        self._next_commit_ms = self._now_ms() + self._settings.auto_commit_interval_ms
        offsets = self._subscription.consumed()
        identity = self.identity()
        if offsets and (identity is None or identity.is_member):
            self._offsets.commit_nowait(offsets, self._automatic_commit_done)
        self._set_commit_timer()

    def _set_commit_timer(self) -> None:
        if self._commit_timer is not None:
            self._commit_timer.cancel()
        if not self._is_closed:
            self._commit_timer_is_set = True
            wait_s = max(self._next_commit_ms - self._now_ms(), 1.0) / 1000
            self._commit_timer = self._event_loop.call_later(wait_s, self._commit_timer_ended)

    def _commit_timer_ended(self) -> None:
        """A poll that waits long has to commit what earlier polls returned."""
        self._commit_timer_is_set = False
        if not self._poll_waits:
            return  # the next poll checks by itself
        if self._now_ms() >= self._next_commit_ms:
            self._commit_is_due = True
            self._wake()
        else:
            self._set_commit_timer()  # the loop counts whole milliseconds, so it may run a moment too early

    def _automatic_commit_done(self, offsets: Offsets, error: Exception | None) -> None:
        if error is None:
            self._on_automatic_commit(offsets)
        else:
            logger.warning("group %s: an automatic commit failed: %s", self._settings.group_id, error)
            self._next_commit_ms = self._now_ms() + self._settings.retry_backoff_ms
            self._set_commit_timer()

    async def _commit_handed_out(self, timeout_s: float | None) -> None:
        """Commit before partitions are revoked, if commits are automatic; if that fails, they go anyway."""
        offsets = self._subscription.consumed() if self._settings.enable_auto_commit else {}
        identity = self.identity()
        if not offsets or (identity is not None and not identity.is_member):
            return
        longest_s = min(self._settings.default_api_timeout_ms, self._settings.max_poll_interval_ms) / 1000
        timeout_s = longest_s if timeout_s is None else min(timeout_s, longest_s)
        try:
            await self._offsets.commit(offsets, timeout_s=timeout_s, giving_up_on=_TOPIC_IS_GONE)
        except ClientError as error:
            logger.warning("group %s: the commit before a revocation failed: %s", self._settings.group_id, error)
        else:
            self._on_automatic_commit(offsets)

    # What commits have to know about the membership

    def identity(self) -> Identity | None:
        return self._member.identity if self._is_started else None

    def refuse(self, code: ErrorCode, identity: Identity) -> bool:
        member = self._member
        may_pass = identity != member.identity or not member.is_stable
        member.on_commit_error(code, identity)
        self._changed()
        self._loop.nudge()
        return may_pass or code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH)

    async def settled(self) -> None:
        while self._is_started and self._member.identity.is_member and not self._member.is_stable:
            await self._news.wait()

    def owns(self, partitions: Iterable[TopicPartition]) -> bool:
        return self._member.owned.issuperset(partitions)

    def why_not_member(self) -> ClientError:
        if self._silence is not None:
            return self._silence
        if self._member.error is not None:
            return self._member.error
        if not self._was_member:
            return ClientError("the consumer has not joined the group yet; call poll() first")
        return ClientError(
            "the group has removed this member, because no heartbeat reached the coordinator within session.timeout.ms "
            "or the consumer missed a rebalance; other members may own the partitions now and read again what was not "
            "committed; call poll() to rejoin"
        )

    def _now_ms(self) -> float:
        return self._clock.monotonic_ms()


def _make_member(settings: GroupSettings) -> ClassicMember | ConsumerMember:
    backoff = Backoff(settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000)

    def pause_ms(failures: int) -> float:
        return backoff.pause_s(failures) * 1000

    if settings.group_protocol == "consumer":
        return ConsumerMember(
            ConsumerConfig(
                group_id=settings.group_id,
                instance_id=settings.group_instance_id,
                remote_assignor=settings.group_remote_assignor,
                rebalance_timeout_ms=settings.max_poll_interval_ms,
                rack=settings.client_rack,
            ),
            pause_ms,
        )
    return ClassicMember(
        ClassicConfig(
            group_id=settings.group_id,
            assignors=choose_assignors(settings.partition_assignment_strategy),
            instance_id=settings.group_instance_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            rack=settings.client_rack,
        ),
        pause_ms,
    )


def _re2_of(pattern: re.Pattern[str]) -> str | None:
    """The pattern in the coordinator's syntax; None if it can't be expressed there, and names have to do."""
    if pattern.flags & (re.VERBOSE | re.ASCII):
        return None
    letters = "".join(
        letter for letter, flag in (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL)) if pattern.flags & flag
    )
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern


async def _within(timeout_s: float, work: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        logger.info("gave up waiting after %g s", timeout_s)
