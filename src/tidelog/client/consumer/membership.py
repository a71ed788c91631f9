"""What both kinds of membership share: the member's identity, and changes of its assignment.

A membership is plain state: it is asked for the next request, given the response and the time, and asked whether the
assignment should change. What always holds: the user was told of every partition that the member owns, or will be told
that it was lost or revoked. Ownership changes only in a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol import ErrorCode

NO_GENERATION = -1
NO_MEMBER_ID = ""


class Identity(NamedTuple):
    """The identity for commits: generation or member epoch, and member id; empty outside a group."""

    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None

    @property
    def is_member(self) -> bool:
        return self.generation > NO_GENERATION


@dataclass(frozen=True, slots=True)
class Turn:
    """One change of the assignment, made while the user is inside poll().

    First, departing partitions are reported and removed. Then, unless `assignment` is None, the new assignment is set
    and the new partitions are reported.
    """

    going: tuple[TopicPartition, ...]
    remaining: frozenset[TopicPartition]
    is_lost: bool = False
    tells_going: bool = False
    assignment: frozenset[TopicPartition] | None = None
    coming: tuple[TopicPartition, ...] = ()

    @property
    def owned_after(self) -> frozenset[TopicPartition]:
        return self.remaining if self.assignment is None else self.assignment


class Retries:
    """When to retry after failures; the pauses grow with the failures in a row."""

    __slots__ = ("_pause_ms", "failures", "retry_at_ms")

    def __init__(self, pause_ms: Callable[[int], float]) -> None:
        self._pause_ms = pause_ms
        self.failures = 0
        self.retry_at_ms = float("-inf")

    def failed(self, now_ms: float) -> None:
        self.failures += 1
        self.retry_at_ms = now_ms + self._pause_ms(self.failures)

    def succeeded(self) -> None:
        self.failures = 0
        self.retry_at_ms = float("-inf")


class Membership(Protocol):
    """What the runner needs from a member of either kind."""

    owned: frozenset[TopicPartition]
    error: ClientError | None
    """The error to raise to the user; the member rests until `error_taken`, forever if it is fatal."""
    coordinator_is_suspect: bool
    """The coordinator has to be looked up again; the one who does so resets this."""

    @property
    def identity(self) -> Identity: ...

    @property
    def is_stable(self) -> bool:
        """Whether a commit now would belong to the current generation."""
        ...

    @property
    def is_stale(self) -> bool:
        """Whether the member left because the user did not poll; it rejoins once the user polls again."""
        ...

    def next_request(self, now_ms: float) -> object | None:
        """The request to send now, if any; not called again until it was answered or has failed."""
        ...

    def next_at_ms(self) -> float:
        """When to ask for a request again if nothing happens before."""
        ...

    def on_response(self, request: object, response: object, now_ms: float) -> None: ...

    def on_failure(self, request: object, error: ClientError, now_ms: float) -> None: ...

    def turn(self) -> Turn | None:
        """The assignment change that is waiting for the user, if any."""
        ...

    def begin_turn(self) -> Turn | None:
        """The same, but now it is being carried out: no request that depends on it is made until `turn_done`."""
        ...

    def turn_done(self, turn: Turn, now_ms: float) -> None: ...

    def subscribe(self, topics: frozenset[str], regex: str | None) -> None:
        """The topics to read; with `regex` the coordinator should find them, if it can."""
        ...

    def request_rejoin(self, reason: str) -> None: ...

    def poll_expired(self) -> bool:
        """The user has stopped polling: leave. Returns whether to notify the coordinator."""
        ...

    def poll_resumed(self) -> None: ...

    def fail(self, error: ClientError) -> None:
        """A permanent error: raise it to the user."""
        ...

    def error_taken(self) -> None: ...

    def left(self) -> None:
        """The member left the group of its own accord."""
        ...

    def on_commit_error(self, code: ErrorCode, identity: Identity) -> None:
        """A commit or offset lookup with this `identity` was refused for a reason that concerns the membership."""
        ...
