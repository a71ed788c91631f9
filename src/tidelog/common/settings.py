"""The mechanism of settings: rows with a name, a type, a default, a check and a help text; tables of them; values.

What always holds: a value in `Settings` has the type its row says and passed its row's check; an unknown name or a bad
value raises SettingError, whose text names the nearest right name or what would be accepted. The rows themselves are in
`tidelog.server.settings_table`.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


class SettingError(ValueError):
    """A setting is unknown or its value can't be used; the text is meant for the person who set it."""


class SettingType(enum.IntEnum):
    """Types with the numbers that DescribeConfigs gives them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class SettingScope(enum.Enum):
    BROKER = "broker"
    TOPIC = "topic"


_INTEGER_RANGES = {
    SettingType.SHORT: (-(2**15), 2**15 - 1),
    SettingType.INT: (-(2**31), 2**31 - 1),
    SettingType.LONG: (-(2**63), 2**63 - 1),
}

Check = Callable[[Any], str | None]
"""Says what is wrong with a parsed value, or None."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str
    type: SettingType
    default: Any
    help: str
    scope: SettingScope = SettingScope.BROKER
    check: Check | None = None
    # For a topic's setting: the broker's setting that gives its default, as in retention.ms and log.retention.ms.
    broker_name: str | None = None
    # Whether it may be changed while the broker runs.
    dynamic: bool = False
    # Broker settings that outrank others of the same meaning, highest first: log.retention.ms, then .minutes, .hours.
    synonyms: tuple[str, ...] = ()

    @property
    def sensitive(self) -> bool:
        return self.type is SettingType.PASSWORD

    def parse(self, raw: object) -> Any:
        """The typed value of a text (or of a value that already has the type); raises SettingError."""
        try:
            value = _convert(self.type, raw)
        except ValueError as error:
            raise SettingError(f"{self.name}={raw}: {error}") from None
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise SettingError(f"{self.name}={raw}: {problem}")
        return value

    def format(self, value: Any) -> str | None:
        """The text that clients are shown; the reverse of `parse`."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (list, tuple)):
            return ",".join(str(item) for item in value)
        return str(value)


class SettingsTable:
    """All rows, by scope and name."""

    def __init__(self, rows: Iterable[Setting]) -> None:
        self._rows: dict[SettingScope, dict[str, Setting]] = {scope: {} for scope in SettingScope}
        for row in rows:
            if row.name in self._rows[row.scope]:
                raise ValueError(f"setting {row.name} stands twice in the table")
            self._rows[row.scope][row.name] = row

    def rows(self, scope: SettingScope) -> Iterator[Setting]:
        return iter(self._rows[scope].values())

    def find(self, name: str, scope: SettingScope) -> Setting | None:
        return self._rows[scope].get(name)

    def get(self, name: str, scope: SettingScope) -> Setting:
        """The row of that name; raises SettingError with the nearest right name."""
        row = self._rows[scope].get(name)
        if row is None:
            raise SettingError(f"unknown {scope.value} setting {name!r}{self._suggestion(name, scope)}")
        return row

    def _suggestion(self, name: str, scope: SettingScope) -> str:
        near = difflib.get_close_matches(name, self._rows[scope], n=1, cutoff=0.6)
        if near:
            return f"; did you mean {near[0]!r}?"
        other = SettingScope.TOPIC if scope is SettingScope.BROKER else SettingScope.BROKER
        if name in self._rows[other]:
            return f"; it is a {other.value} setting"
        return ""


@dataclass(slots=True)
class Settings:
    """A broker's values: what was set, over the table's defaults."""

    table: SettingsTable
    values: dict[str, Any] = field(default_factory=dict)
    # Where each set value came from: a file's name, "environment", "command line".
    origins: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, raw: object, origin: str) -> None:
        self.values[name] = self.table.get(name, SettingScope.BROKER).parse(raw)
        self.origins[name] = origin

    def update(self, raw: Mapping[str, object], origin: str) -> None:
        for name, value in raw.items():
            self.set(name, value, origin)

    def is_set(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        return self.table.get(name, SettingScope.BROKER).default

    def get_int(self, name: str) -> int:
        value = self[name]
        if not isinstance(value, int):
            raise TypeError(f"setting {name} holds {value!r}, not an integer")
        return value

    def get_bool(self, name: str) -> bool:
        return bool(self[name])

    def get_str(self, name: str) -> str:
        return str(self[name])


def _convert(kind: SettingType, raw: object) -> Any:
    if raw is None:
        return None
    if kind is SettingType.BOOLEAN:
        if isinstance(raw, bool):
            return raw
        text = str(raw).strip().lower()
        if text not in ("true", "false"):
            raise ValueError("expected true or false")
        return text == "true"
    if kind in _INTEGER_RANGES:
        try:
            number = int(str(raw).strip())
        except ValueError:
            raise ValueError("expected a whole number") from None
        low, high = _INTEGER_RANGES[kind]
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low} to {high}")
        return number
    if kind is SettingType.DOUBLE:
        try:
            return float(str(raw).strip())
        except ValueError:
            raise ValueError("expected a number") from None
    if kind is SettingType.LIST:
        if isinstance(raw, (list, tuple)):
            return [str(item) for item in raw]
        return [item.strip() for item in str(raw).split(",") if item.strip()]
    return str(raw).strip()
