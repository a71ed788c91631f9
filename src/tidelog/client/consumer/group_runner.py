"""A consumer's membership in its group, run on the event loop: heartbeats, rebalances, commits.

How a consumer uses it. `poll()` calls `poll_started(now_ms)` first, then looks at `has_turn`: a rebalance step, or an
automatic commit, that may only happen while the user is inside `poll()`. While it is true, `poll()` awaits
`take_turn(timeout_s)` on the loop and hands out no records; listeners are called from there by `call_user`. A `poll()`
that has to wait for records says so by `poll_waits`, and `poll_ended` when it returns, so that its waiting does not
count against `max.poll.interval.ms`. `wake` is called on the loop when `has_turn` turns true, so that a `poll()` that
waits notices.

What always holds: heartbeats go on while the user's code runs; the assignment in `subscription` only changes within a
turn, so what a poll returns belongs to the assignment that the user was told. Only `poll_started`, `poll_waits`,
`poll_ended`, `has_turn` and `group_metadata` may be used from other threads than the loop's. Patterns are matched by
whoever owns the subscription, who then calls `subscription_changed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.client.consumer.rebalance import UserCall
from tidelog.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tidelog.common.clock import Clock, SystemClock

if TYPE_CHECKING:
    from tidelog.client.consumer.subscription import SubscriptionState
    from tidelog.client.network.cluster import Cluster

CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], Exception | None], None]


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What a consumer's settings say about its group; names and defaults are Kafka's."""

    group_id: str
    group_instance_id: str | None = None
    group_protocol: str = "classic"  # or "consumer"
    group_remote_assignor: str | None = None
    partition_assignment_strategy: tuple[object, ...] = ("range", "cooperative-sticky")  # names, or assignors
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    isolation_level: str = "read_uncommitted"  # read_committed waits for open transactions when it asks for offsets
    client_rack: str | None = None


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
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()

    # The membership

    def start(self) -> None:
        """Begin to join; called once there is a subscription by name or pattern. Manual assignments never call it."""

    async def close(self, *, leave: bool = True, timeout_s: float = 30.0) -> None:
        """Commit what is due, tell the listener, leave the group; ends within the time."""

    async def unsubscribe(self) -> None:
        """Tell the listener and leave the group; the runner may be started again.

        The caller clears the subscription afterwards, so that the listener still sees the assignment.
        """

    def subscription_changed(self) -> None:
        """The user subscribed to something else; the member joins anew with it."""

    def request_rejoin(self, reason: str) -> None:
        """Ask for a rebalance, as `enforce_rebalance()` does."""

    # Inside poll()

    def poll_started(self, now_ms: float) -> None:
        """Every poll says so, from the user's thread: restarts `max.poll.interval.ms`; raises what is fatal."""

    def poll_waits(self) -> None:
        """The poll waits for records: until `poll_ended` the time does not count."""

    def poll_ended(self, now_ms: float) -> None:
        """The poll that waited returns to the user's code."""

    @property
    def has_turn(self) -> bool:
        """Whether something waits for the user to be inside poll(); cheap, from any thread."""
        return False

    async def take_turn(self, timeout_s: float | None = None) -> None:
        """Do what waits for the user; returns early when the time is up, then `has_turn` stays true.

        A listener that has begun is waited for. Raises what a listener raised, and fatal errors.
        """

    # Offsets

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, timeout_s: float | None = None
    ) -> None:
        """Commit and wait; retries what may pass. Raises CommitFailedError when the generation is gone."""

    def commit_nowait(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], on_done: CommitCallback | None = None
    ) -> None:
        """Commit without waiting and without retries; `on_done` is called on the loop in the order of the commits."""

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None where there is nothing."""
        return {}

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who this member is, for a transactional producer that commits its offsets."""
        return ConsumerGroupMetadata("", -1, "", None)
