"""Checks of names that come from outside, with messages that say what would be right."""

from __future__ import annotations

import re

TOPIC_NAME_LENGTH_MAX = 249  # a partition's directory is `name-N`, and file names end at 255 bytes
_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str | None:
    """Why this can't name a topic, or None when it can."""
    if not name:
        return "a topic name may not be empty"
    if name in (".", ".."):
        return "a topic name may not be '.' or '..'"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"a topic name may have at most {TOPIC_NAME_LENGTH_MAX} characters, this one has {len(name)}"
    if not _LEGAL_TOPIC_NAME.fullmatch(name):
        return f"{name!r} may only hold ASCII letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Two topics with equal keys would share metric names, where '.' and '_' look alike; the second is refused."""
    return name.replace(".", "_")
