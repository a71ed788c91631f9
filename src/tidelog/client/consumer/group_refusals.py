"""Explains why a coordinator refused a member, and what to do about it, in one line for people."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.client.errors import BrokerError, FatalError
from tidelog.protocol import ErrorCode


class UnreleasedInstanceError(BrokerError, FatalError):
    """Another member with the same `group.instance.id` is still in the group."""


def explain_refusal(
    code: ErrorCode,
    what: str,
    *,
    group_id: str,
    instance_id: str | None = None,
    assignors: Sequence[str] = (),
    session_timeout_ms: int | None = None,
    message: str | None = None,
) -> BrokerError:
    """The error to raise when a request (`what`) was refused for good."""
    named = ", ".join(assignors) or "none"
    texts = {
        ErrorCode.FENCED_INSTANCE_ID: (
            f"another consumer with group.instance.id {instance_id} has taken this one's place; "
            "give every consumer an id of its own, and close this one"
        ),
        ErrorCode.UNRELEASED_INSTANCE_ID: (
            f"another consumer with group.instance.id {instance_id} is in the group; close it first, "
            "or wait for its session to end"
        ),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
            f"the other members support none of this member's assignors ({named}), or are no consumers; "
            "let partition.assignment.strategy name one that all of them have"
        ),
        ErrorCode.UNSUPPORTED_ASSIGNOR: (
            f"the brokers have no assignor {named}; leave group.remote.assignor out to take their default"
        ),
        ErrorCode.GROUP_MAX_SIZE_REACHED: (
            "the group has as many members as the broker allows (group.max.size, group.consumer.max.size); "
            "close one of them first"
        ),
        ErrorCode.INVALID_SESSION_TIMEOUT: (
            f"the broker does not allow session.timeout.ms={session_timeout_ms}; "
            "see its group.min.session.timeout.ms and group.max.session.timeout.ms"
        ),
    }
    text = texts.get(code, f"the {what} was refused: {message or code.description}")
    subject = f"group {group_id}"
    if code is ErrorCode.UNRELEASED_INSTANCE_ID:
        return UnreleasedInstanceError(code, text, subject=subject)
    return BrokerError(code, text, subject=subject)
