"""Small notations as people read and write them: sizes, counts, key=value, escapes, times."""

from __future__ import annotations

import datetime
import re

_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?i?)b?(?:/s)?", re.IGNORECASE)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def size_text(size_bytes: int) -> str:
    """1536 is '1.5 KiB'."""
    size = float(size_bytes)
    for unit in _SIZE_UNITS:
        if abs(size) < 1024 or unit == _SIZE_UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def rate_text(bytes_per_second: int) -> str:
    """In the units that throttles are given in: 50000000 is '50 MB/s'."""
    rate = float(bytes_per_second)
    for unit in ("B", "kB", "MB", "GB"):
        if rate < 1000 or unit == "GB":
            break
        rate /= 1000
    return f"{rate:.4g} {unit}/s"


def parse_size(text: str) -> int:
    """'50MB' is 50,000,000, '50MiB' 52,428,800, and so is either with '/s' behind it; raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() == "i":
        raise ValueError(f"{text!r} is not a size, as in 500kB, 50MB or 1GiB")
    prefix = match[2].lower()
    base = 1024 if prefix.endswith("i") else 1000
    return int(float(match[1]) * base ** (" kmgt".index(prefix[0]) if prefix else 0))


def count_text(count: int) -> str:
    """1234567 is '1,234,567'."""
    return f"{count:,}"


def plural(count: int, noun: str) -> str:
    """'1 record', '1,234 records'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration_text(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def timestamp_text(timestamp_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC; '-' for none."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms // 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def unescape(text: str) -> str:
    r"""Turn \n, \t, \r, \0 and \\ into what they stand for; raises ValueError for any other escape."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in _ESCAPES:
            raise ValueError(f"\\{match[1]} is not an escape; there are \\n, \\t, \\r, \\0 and \\\\")
        return _ESCAPES[match[1]]

    if re.search(r"(?<!\\)(\\\\)*\\$", text):
        raise ValueError("a single \\ at the end; write \\\\ for a backslash")
    return _ESCAPE.sub(replace, text)


def parse_pair(text: str, example: str) -> tuple[str, str]:
    """`key=value`; raises ValueError that shows the example."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ValueError(f"{text!r} is not key=value, as in {example}")
    return key.strip(), value


def parse_timestamp(text: str) -> int:
    """Milliseconds since 1970, or a time as ISO 8601 (without a zone: local time); raises ValueError."""
    if re.fullmatch(r"\d+", text):
        return int(text)
    try:
        return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time; write milliseconds since 1970 or ISO 8601, as in 2026-01-31T12:00:00+01:00"
        ) from None
