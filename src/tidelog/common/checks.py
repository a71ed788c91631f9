"""Checks of names that come from outside, with messages that say what would be right."""

from __future__ import annotations

import re

TOPIC_NAME_LENGTH_MAX = 249  # a partition's directory is `name-N`, and file names end at 255 bytes
_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_OFFSET_NAME = re.compile(r"[0-9]{20}")
_PARTITION_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")  # as an int is written, so that no two directories share one


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


def offset_in_file_name(stem: str) -> int | None:
    """The offset that names a file of a partition, or None for any other file; "²" is a digit to str.isdigit alone."""
    return int(stem) if _OFFSET_NAME.fullmatch(stem) else None


def partition_of_directory(name: str) -> tuple[str, int] | None:
    """Topic and partition that a directory belongs to, or None where it is of no partition."""
    topic, _, number = name.rpartition("-")
    if topic_name_problem(topic) is not None or not _PARTITION_NUMBER.fullmatch(number):
        return None
    return topic, int(number)


def collision_key(name: str) -> str:
    """Two topics with equal keys would share metric names, where '.' and '_' look alike; the second is refused."""
    return name.replace(".", "_")
