"""What both kinds of membership have in common: who the member is, and the changes of its assignment.

A membership is plain state: it is asked for the next request, handed the answer and the time, and asked whether the
assignment is to change. What always holds: a partition that the member owns is one that the user was told of, or will
be told lost or revoked; nothing is owned that no turn has brought.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode

NO_GENERATION = -1
NO_MEMBER_ID = ""


class Identity(NamedTuple):
    """Who commits: the generation, or the member epoch, and the member; a consumer outside of a group is nobody."""

    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None

    @property
    def is_member(self) -> bool:
        return self.generation > NO_GENERATION


@dataclass(frozen=True, slots=True)
class Turn:
    """One change of the assignment, made while the user is inside poll().

    First what goes is told and taken away, then, unless `assignment` is None, what is then owned is set, and what comes
    is told.
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
    """When something that failed may be tried again; the pauses grow with the failures in a row."""

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
    """What the runner needs of a member of either kind."""

    owned: frozenset[TopicPartition]
    error: ClientError | None
    """The error to raise to the user; the member rests until `error_taken`, forever if it is fatal."""
    coordinator_is_suspect: bool
    """The coordinator has to be looked up again; the one who does so resets this."""

    @property
    def identity(self) -> Identity: ...

    @property
    def is_stable(self) -> bool:
        """Whether a commit of now is one of the present generation."""
        ...

    @property
    def is_stale(self) -> bool:
        """Whether the member left because the user did not poll; it rejoins once the user does."""
        ...

    def next_request(self, now_ms: float) -> object | None:
        """The request to send now, if any; the next one is only asked for when this one was answered or failed."""
        ...

    def next_at_ms(self) -> float:
        """When to ask for a request again, if nothing happens before."""
        ...

    def on_response(self, request: object, response: object, now_ms: float) -> None: ...

    def on_failure(self, request: object, error: ClientError, now_ms: float) -> None: ...

    def turn(self) -> Turn | None:
        """The change of the assignment that waits for the user, if any."""
        ...

    def begin_turn(self) -> Turn | None:
        """The same, and it is carried out from now on: no request is made that depends on it until `turn_done`."""
        ...

    def turn_done(self, turn: Turn, now_ms: float) -> None: ...

    def subscribe(self, topics: frozenset[str], regex: str | None) -> None:
        """The topics to read; with `regex` the coordinator is to find them, if it can."""
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
        """The member is in the group no more, by its own wish."""
        ...

    def on_commit_error(self, code: ErrorCode, identity: Identity) -> None:
        """A commit or a look-up of offsets by `identity` was refused for a reason that concerns the membership."""
        ...
