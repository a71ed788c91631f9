"""Loads the broker's Settings from a file, the environment and the command line.

What always holds: the command line takes precedence over the environment, which takes precedence over the file; every
name and value is checked against the table, and settings against each other; the first mistake raises SettingError with
a one-line text that says where it is and what would be valid. The only file read is the one that the caller names.

A file is TOML, where nested tables are another way to write dotted names, or Java properties like Kafka's own
`server.properties`. In the environment, log.segment.bytes is TIDELOG_LOG_SEGMENT_BYTES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tidelog.common.settings import SettingError, Settings, SettingScope, SettingsTable, nearest_name
from tidelog.server.listener_names import check_listeners
from tidelog.server.properties_file import parse_properties
from tidelog.server.settings_table import TABLE
from tidelog.server.supervision import SUPERVISOR_PID

ENVIRONMENT_PREFIX = "TIDELOG_"
# Variables of the command line itself, which share the prefix but are not broker settings.
OTHER_VARIABLES = frozenset({"TIDELOG_BOOTSTRAP", "TIDELOG_CONFIG", "TIDELOG_PIPELINES", SUPERVISOR_PID})


def load(
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    *,
    options: Mapping[str, object] | None = None,
    table: SettingsTable = TABLE,
) -> Settings:
    """Load the settings of a broker; raises SettingError.

    `overrides` are the arguments of `--set key=value`. `options` are the settings with a command-line option of
    their own (`--listen` sets listeners); they take precedence over all others.
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
    """The environment variable for this setting."""
    return ENVIRONMENT_PREFIX + setting_name.replace(".", "_").upper()


def check_together(settings: Settings) -> None:
    """Check settings that depend on each other; raises SettingError."""
    check_listeners(settings)
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
    for name, value, line in _entries(path, text):
        place = str(path) if line is None else f"{path}:{line}"
        _set(settings, name, value, path.name, place)


def _entries(path: Path, text: str) -> list[tuple[str, object, int | None]]:
    # Most brokers start without a file, and the TOML parser is slow to import.
    from tidelog.server.toml_file import parse_toml

    looks_like_toml = any(line.lstrip().startswith("[") for line in text.splitlines())
    if path.suffix != ".properties":
        try:
            return list(parse_toml(text))
        except ValueError as error:
            if path.suffix == ".toml" or looks_like_toml:
                raise SettingError(f"{path}: {error}") from None
    try:
        return list(parse_properties(text))
    except ValueError as error:
        raise SettingError(f"{path}:{error}") from None


def _load_environment(settings: Settings, environ: Mapping[str, str]) -> None:
    names = {environment_name(row.name): row.name for row in settings.table.rows(SettingScope.BROKER)}
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable not in names:
            near = nearest_name(variable, names)
            suggestion = f"; did you mean {near}?" if near is not None else ""
            raise SettingError(f"environment: {variable} does not name a setting{suggestion}")
        _set(settings, names[variable], environ[variable], "environment", f"environment {variable}")
