"""What the user may have meant: names like the one that doesn't exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from tidelog.cli.errors import CommandError

if TYPE_CHECKING:
    from tidelog.client.admin import Admin
    from tidelog.client.errors import BrokerError

SUGGESTIONS_MAX = 3


def suggestion(name: str, existing: Iterable[str]) -> str:
    """'; did you mean 'orders'?', or nothing when no name is like it."""
    names = list(existing)
    by_lower = {known.lower(): known for known in names}
    near = [by_lower[found] for found in get_close_matches(name.lower(), by_lower, SUGGESTIONS_MAX)]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near and name not in names else ""


def with_suggestion(admin: Admin, error: BrokerError, topics: Sequence[str], groups: Sequence[str]) -> Exception:
    """The error with a suggestion for the first of the names that doesn't exist; the error itself if there is none."""
    from tidelog.client.errors import ClientError
    from tidelog.protocol import ErrorCode

    try:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topics:
            text = _first(topics, [topic.name for topic in admin.list_topics()])
        elif error.code is ErrorCode.GROUP_ID_NOT_FOUND and groups:
            text = _first(groups, [group.group_id for group in admin.list_groups()])
        else:
            return error
    except ClientError:
        return error  # the first error is what the user has to know
    return CommandError(f"{error}{text}") if text else error


def _first(names: Sequence[str], existing: Sequence[str]) -> str:
    return next((text for name in names if (text := suggestion(name, existing))), "")
