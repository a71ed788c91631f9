"""Settings files in TOML: nested tables and dotted keys are two ways to write the same dotted names.

What always holds: names come back dotted, with their line numbers where known. The parser does not report lines, so
they are searched for in the text; a line is None if not found, as inside an inline table.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

_TABLE = re.compile(r"\s*\[([^\[\]]+)\]")
_KEY = re.compile(r"""\s*([\w."'\s-]+?)\s*=""")


def parse_toml(text: str) -> Iterator[tuple[str, object, int | None]]:
    """Yield name, value and line number; raises ValueError that says where the text is not valid TOML."""
    table = tomllib.loads(text)
    lines = _lines(text)
    return ((name, value, lines.get(name)) for name, value in _flatten(table, ""))


def _flatten(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _lines(text: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if table := _TABLE.match(line):
            prefix = _dotted(table[1]) + "."
        elif key := _KEY.match(line):
            lines.setdefault(prefix + _dotted(key[1]), number)
    return lines


def _dotted(key: str) -> str:
    return ".".join(part.strip() for part in re.sub(r"[\"']", "", key).split("."))
