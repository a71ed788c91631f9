"""The mechanism of settings: rows with a name, a type, a default, a check and a help text; tables of them; values.

What always holds: a value in `Settings` has the type its row says and passed its row's check; an unknown name or a bad
value raises SettingError, whose text names the nearest right name or what would be accepted. The rows themselves are in
`tidelog.server.settings_table`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from tidelog.common.light_dataclass import dataclass


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
    GROUP = "group"


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
    # For a setting of a topic or a group: the broker's setting that gives its default, as in retention.ms and
    # log.retention.ms.
    broker_name: str | None = None
    # Whether it may be changed while the broker runs.
    dynamic: bool = False
    # Broker settings of the same meaning that are asked, in this order, when this one has no value: log.retention.ms
    # has log.retention.minutes and log.retention.hours. Each counts in the unit that ends its name.
    synonyms: tuple[str, ...] = ()
    # Gives a checked value the one form that it is kept and shown in.
    normalize: Callable[[Any], Any] | None = None

    @property
    def sensitive(self) -> bool:
        return self.type is SettingType.PASSWORD

    def parse(self, raw: object) -> Any:
        """The typed value of a text (or of a value that already has the type); raises SettingError."""
        if raw is None:
            if self.default is not None:
                raise SettingError(f"{self.name}: expected a value")
            return None
        try:
            value = _convert(self.type, raw)
        except ValueError as error:
            raise SettingError(f"{self.name}={raw}: {error}") from None
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise SettingError(f"{self.name}={raw}: {problem}")
        return value if self.normalize is None else self.normalize(value)

    def format(self, value: Any) -> str | None:
        """The text that clients are shown; the reverse of `parse`."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            # As Java writes it: 1.7976931348623157E308.
            return repr(value).replace("e+", "E").replace("e", "E")
        if isinstance(value, (list, tuple)):
            return ",".join(str(item) for item in value)
        return str(value)


def at_least(low: int | float) -> Check:
    return lambda value: None if value >= low else f"expected {low} or more"


def between(low: int | float, high: int | float) -> Check:
    return lambda value: None if low <= value <= high else f"expected {low} to {high}"


def one_of(*accepted: str) -> Check:
    return lambda value: None if value in accepted else f"expected one of {', '.join(accepted)}"


def some_of(*accepted: str) -> Check:
    """For a list: every item is one of these."""

    def check(items: list[str]) -> str | None:
        wrong = [item for item in items if item not in accepted]
        return f"expected any of {', '.join(accepted)}, got {wrong[0]!r}" if wrong else None

    return check


_UNIT_MS = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}


def in_unit_of(name: str, synonym: str, value: Any) -> Any:
    """A synonym's value in the unit of the setting it stands in for; negative means unlimited in every unit."""
    factor = _UNIT_MS.get(synonym.rpartition(".")[2], 1) // _UNIT_MS.get(name.rpartition(".")[2], 1)
    if value is None or factor == 1:
        return value
    return value * factor if value >= 0 else -1


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The one that looks most like this name, if any comes close."""
    # Needed only after a mistake, and slow to import.
    import difflib

    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return near[0] if near else None


class SettingsTable:
    """All rows, by scope and name."""

    def __init__(self, rows: Iterable[Setting]) -> None:
        self._rows: dict[SettingScope, dict[str, Setting]] = {scope: {} for scope in SettingScope}
        for row in rows:
            if row.name in self._rows[row.scope]:
                raise ValueError(f"setting {row.name} appears twice in the table")
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
        for row in (*self._rows[SettingScope.TOPIC].values(), *self._rows[SettingScope.GROUP].values()):
            kind = row.scope.value
            if scope is SettingScope.BROKER and name == row.name and row.broker_name is not None:
                return f"; it is a {kind} setting, whose default for all {kind}s is {row.broker_name!r}"
            if scope is row.scope and name == row.broker_name:
                return f"; it is a broker setting, which a {kind} calls {row.name!r}"
        near = nearest_name(name, self._rows[scope])
        if near is not None:
            return f"; did you mean {near!r}?"
        others = (other for other in SettingScope if other is not scope and name in self._rows[other])
        other = next(others, None)
        return "" if other is None else f"; it is a {other.value} setting"


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

    def effective(self, name: str) -> Any:
        """The value that counts: the setting's own, or the one of the first synonym that has a value."""
        value = self[name]
        row = self.table.get(name, SettingScope.BROKER)
        for synonym in row.synonyms:
            if value is not None:
                break
            value = in_unit_of(name, synonym, self[synonym])
        return value

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
