"""Clients' regular expressions: which topics one matches in a subscription (KIP-848), or what else it matches.

What always holds: the expression comes from a client, so it is matched by RE2, as Kafka does: its time grows with the
length of what it matches and never explodes, and its memory is bounded. It matches whole names, those of internal
topics included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.coordinator.config import GroupImage

_MEMORY_BYTES_MAX: Final = 1 << 20


class InvalidRegexError(Exception):
    """A member's regular expression is invalid, or takes too much memory."""


def resolve_regex(pattern: str, image: GroupImage) -> frozenset[str]:
    """The topics whose names the pattern matches; raises InvalidRegexError."""
    matches = compile_regex(pattern)
    return frozenset(name for name in image.topic_names() if matches(name))


def compile_regex(pattern: str) -> Callable[[str], bool]:
    """A function that checks whether the pattern matches a whole text; raises InvalidRegexError."""
    import re2  # half a megabyte that most brokers never need

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES_MAX
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        (reason,) = error.args
        raise InvalidRegexError(reason.decode() if isinstance(reason, bytes) else str(reason)) from None
    return lambda text: compiled.fullmatch(text) is not None
