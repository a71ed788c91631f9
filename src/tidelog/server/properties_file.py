"""Java's properties files: `name=value` lines with comments, continuation lines and escapes.

What always holds: names and values come back as Java would read them, each with the number of its first line; a
name that appears twice is returned twice, in order. The text is read as UTF-8, whose ASCII part is what Java expects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE_DIGITS = re.compile(r"[0-9A-Fa-f]{4}")
_BLANKS = " \t\f"


def parse_properties(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield name, value and line number; raises ValueError with a text that starts with the line number."""
    for line, number in _logical_lines(text):
        end = _name_end(line)
        rest = line[end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        yield _unescape(line[:end], number), _unescape(rest, number), number


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    joined, start = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.lstrip(_BLANKS)
        if not start:
            if not line or line[0] in "#!":
                continue
            start = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
            continue
        yield joined + line, start
        joined, start = "", 0
    if start:
        yield joined, start


def _name_end(line: str) -> int:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 2
        elif line[position] in "=:" or line[position] in _BLANKS:
            return position
        else:
            position += 1
    return len(line)


def _unescape(text: str, line_number: int) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        if character != "\\" or position + 1 == len(text):
            parts.append(character)
            position += 1
            continue
        escaped = text[position + 1]
        position += 2
        if escaped == "u":
            digits = _UNICODE_DIGITS.match(text, position)
            if digits is None:
                raise ValueError(f"{line_number}: \\u needs four hexadecimal digits")
            parts.append(chr(int(digits[0], 16)))
            position += 4
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
    return "".join(parts)
