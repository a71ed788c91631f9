"""From a settings file, the environment and the command line to the broker's Settings.

What always holds: the command line outranks the environment, which outranks the file; every name and value is checked
against the table, and settings against each other; the first thing wrong raises SettingError with one line that says
where it stands and what would be right. Nothing is read here but the file that the caller names.

A file is TOML, where nested tables are another way to write dotted names, or Java properties as Kafka's own
`server.properties`. In the environment LOG_SEGMENT_BYTES after the prefix TIDELOG_ is log.segment.bytes.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tidelog.common.endpoint import parse_endpoint
from tidelog.common.settings import SettingError, Settings, SettingScope, SettingsTable
from tidelog.server.properties_file import parse_properties
from tidelog.server.settings_table import TABLE

ENVIRONMENT_PREFIX = "TIDELOG_"
# Variables of the command line itself, which share the prefix and are no broker settings.
OTHER_VARIABLES = frozenset({"TIDELOG_BOOTSTRAP", "TIDELOG_CONFIG"})

_WILDCARD_HOSTS = ("", "0.0.0.0", "::")
_TOML_TABLE = re.compile(r"\s*\[([^\[\]]+)\]")
_TOML_KEY = re.compile(r"""\s*([\w."'\s-]+?)\s*=""")


class _Entry(NamedTuple):
    name: str
    value: object
    line: int | None


def load(
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    *,
    options: Mapping[str, object] | None = None,
    table: SettingsTable = TABLE,
) -> Settings:
    """The settings of a broker; raises SettingError.

    `overrides` are the texts of `--set key=value`. `options` holds settings by name whose value came by an option of
    its own (`--listen` sets listeners) and outranks all others.
    """
    settings = Settings(table)
    if config_file is not None:
        _load_file(settings, config_file)
    _load_environment(settings, environ or {})
    for text in overrides:
        name, separator, value = text.partition("=")
        if not separator:
            raise SettingError(f"--set {text}: expected key=value")
        _set(settings, name.strip(), value, "command line", "--set")
    for option_name, option_value in (options or {}).items():
        _set(settings, option_name, option_value, "command line", "command line")
    check_together(settings)
    return settings


def environment_name(setting_name: str) -> str:
    """The environment variable that sets this setting."""
    return ENVIRONMENT_PREFIX + setting_name.replace(".", "_").upper()


def check_together(settings: Settings) -> None:
    """What no single row can see; raises SettingError."""
    if settings["advertised.listeners"] is not None:
        for text in settings["advertised.listeners"]:
            if parse_endpoint(text).host in _WILDCARD_HOSTS:
                raise SettingError(
                    f"advertised.listeners={text}: clients can't connect to all interfaces; name one host"
                )
    queued_bytes, request_bytes = settings["queued.max.request.bytes"], settings["socket.request.max.bytes"]
    if 0 < queued_bytes < request_bytes:
        raise SettingError(
            f"queued.max.request.bytes={queued_bytes}: it must hold at least one request of "
            f"socket.request.max.bytes={request_bytes}"
        )
    lag_min, lag_max = settings["log.cleaner.min.compaction.lag.ms"], settings["log.cleaner.max.compaction.lag.ms"]
    if lag_min > lag_max:
        raise SettingError(
            f"log.cleaner.min.compaction.lag.ms={lag_min}: it exceeds log.cleaner.max.compaction.lag.ms={lag_max}"
        )


def _set(settings: Settings, name: str, value: object, origin: str, place: str) -> None:
    try:
        settings.set(name, value, origin)
    except SettingError as error:
        raise SettingError(f"{place}: {error}") from None


def _load_file(settings: Settings, path: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: not a text file in UTF-8: {error.reason} at byte {error.start}") from None
    try:
        entries = _toml_entries(text) if _is_toml(path, text) else _properties_entries(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path}: {error}") from None
    except ValueError as error:
        raise SettingError(f"{path}:{error}") from None
    for entry in entries:
        place = str(path) if entry.line is None else f"{path}:{entry.line}"
        _set(settings, entry.name, entry.value, path.name, place)


def _is_toml(path: Path, text: str) -> bool:
    if path.suffix in (".toml", ".properties"):
        return path.suffix == ".toml"
    if any(line.lstrip().startswith("[") for line in text.splitlines()):
        return True
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _properties_entries(text: str) -> list[_Entry]:
    return [_Entry(name, value, line) for name, value, line in parse_properties(text)]


def _toml_entries(text: str) -> list[_Entry]:
    lines = _toml_lines(text)
    return [_Entry(name, value, lines.get(name)) for name, value in _flatten(tomllib.loads(text), "")]


def _flatten(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _toml_lines(text: str) -> dict[str, int]:
    """The line of each name; the parser does not keep them, and one that this misses is reported without its line."""
    lines: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if table := _TOML_TABLE.match(line):
            prefix = _dotted(table[1]) + "."
        elif key := _TOML_KEY.match(line):
            lines.setdefault(prefix + _dotted(key[1]), number)
    return lines


def _dotted(key: str) -> str:
    return ".".join(part.strip() for part in re.sub(r"[\"']", "", key).split("."))


def _load_environment(settings: Settings, environ: Mapping[str, str]) -> None:
    names = {environment_name(row.name): row.name for row in settings.table.rows(SettingScope.BROKER)}
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable not in names:
            near = difflib.get_close_matches(variable, names, n=1, cutoff=0.6)
            suggestion = f"; did you mean {near[0]}?" if near else ""
            raise SettingError(f"environment: {variable} names no setting{suggestion}")
        _set(settings, names[variable], environ[variable], "environment", f"environment {variable}")
