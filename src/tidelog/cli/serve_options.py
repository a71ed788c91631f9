"""The options of `tidelog serve`, declared once, and a reader for plain uses of them that needs no library.

Why: typer costs `tidelog serve` 75 ms and 10 MB (measured on two cores), of the 500 ms to the first client and 80 MB
idle that are promised, for a few lines at its start. What always holds: `parse_plain` reads an option exactly as typer
would, or gives None; then typer takes over, for help, abbreviations, mistakes and their explanations.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServeOption:
    """One option: how it is written and explained."""

    flag: str
    metavar: str | None
    help: str
    takes_value: bool = True
    repeatable: bool = False
    choices: tuple[str, ...] = ()
    convert: Callable[[str], object] = str


class LogLevel(enum.StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# By the name of the field of ServeArguments that an option sets.
SERVE_OPTIONS = {
    "listen": ServeOption("--listen", "HOST:PORT", "Where clients connect; port 0 takes a free one."),
    "data": ServeOption("--data", "DIR", "Where topics are kept; made when it is not there.", convert=Path),
    "config": ServeOption("--config", "FILE", "A file of settings, TOML or Java properties.", convert=Path),
    "overrides": ServeOption(
        "--set", "KEY=VALUE", "A setting, over those of file and environment; may be repeated.", repeatable=True
    ),
    "log_level": ServeOption("--log-level", None, "What to log, on standard error.", choices=tuple(LogLevel)),
    "log_json": ServeOption("--log-json", None, "Log lines of JSON instead of text.", takes_value=False),
}


@dataclass(slots=True)
class ServeArguments:
    """What the command line asked for."""

    listen: str | None = None
    data: Path = Path("tidelog-data")
    config: Path | None = None
    overrides: list[str] = field(default_factory=list)
    log_level: str = LogLevel.INFO.value
    log_json: bool = False


def parse_plain(arguments: Sequence[str]) -> ServeArguments | None:
    """The arguments, when every one is a whole option name with a value where it takes one; else None."""
    by_flag = {option.flag: (name, option) for name, option in SERVE_OPTIONS.items()}
    parsed = ServeArguments()
    waiting = list(reversed(arguments))
    while waiting:
        flag, has_inline_value, value = waiting.pop().partition("=")
        if flag not in by_flag:
            return None
        name, option = by_flag[flag]
        if not option.takes_value:
            if has_inline_value:
                return None
            parsed.log_json = True
            continue
        if not has_inline_value:
            if not waiting or waiting[-1].startswith("-"):
                return None
            value = waiting.pop()
        if option.choices and value not in option.choices:
            return None
        if option.repeatable:
            parsed.overrides.append(value)
        else:
            setattr(parsed, name, option.convert(value))
    return parsed


def start(arguments: ServeArguments) -> int:
    """Run a broker until it ends; gives the exit code. Raises SettingError for settings that can't be used."""
    from tidelog.server.serve import run
    from tidelog.server.settings_load import load

    options: dict[str, object] = {} if arguments.listen is None else {"listeners": arguments.listen}
    settings = load(arguments.config, os.environ, arguments.overrides, options=options)
    return run(settings, data_dir=arguments.data, log_level=arguments.log_level, log_json=arguments.log_json)
