"""The options of `tidelog serve`, declared once, and a parser for ordinary command lines that needs no library.

Why: typer costs `tidelog serve` 75 ms and 10 MB (measured on two cores), out of the 500 ms to the first client and
80 MB idle that are promised, just to read a few options. What always holds: `parse_plain` reads an option exactly as
typer would, or returns None; then typer takes over, for help, abbreviations and mistakes.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path

from tidelog.common.light_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ServeOption:
    """One option: its name and its help."""

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
    "listen": ServeOption("--listen", "HOST:PORT", "Address to listen on; port 0 picks a free one."),
    "data": ServeOption("--data", "DIR", "Data directory; created if it doesn't exist.", convert=Path),
    "brokers": ServeOption(
        "--brokers", "N", "Run a cluster of this many brokers, one process each; auto: one per core. Ports count up."
    ),
    "node_id": ServeOption("--node-id", "N", "This broker's id in its cluster; 1 unless set.", convert=int),
    "metadata": ServeOption(
        "--metadata",
        "WHERE",
        "Where the cluster's metadata is: sqlite (in the data directory), sqlite:PATH, or zookeeper://HOST:PORT,.../PATH.",
    ),
    "config": ServeOption("--config", "FILE", "Settings file, TOML or Java properties.", convert=Path),
    "overrides": ServeOption(
        "--set", "KEY=VALUE", "Set a setting, overriding file and environment; repeatable.", repeatable=True
    ),
    "log_level": ServeOption("--log-level", None, "Log level, on standard error.", choices=tuple(LogLevel)),
    "log_json": ServeOption("--log-json", None, "Log as lines of JSON.", takes_value=False),
}


@dataclass(slots=True)
class ServeArguments:
    """The parsed command line."""

    listen: str | None = None
    data: Path = Path("tidelog-data")
    config: Path | None = None
    overrides: list[str] = field(default_factory=list)
    log_level: str = LogLevel.INFO.value
    log_json: bool = False
    node_id: int | None = None
    metadata: str | None = None
    brokers: str | None = None


def parse_plain(arguments: Sequence[str]) -> ServeArguments | None:
    """The arguments, if each is a full option name with its value; otherwise None."""
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
            try:
                setattr(parsed, name, option.convert(value))
            except ValueError:
                return None
    return parsed


def start(arguments: ServeArguments) -> int:
    """Run one broker or several until they stop; returns the exit code. Raises SettingError for unusable settings."""
    from tidelog.server.serve import run
    from tidelog.server.settings_load import load

    if arguments.brokers is not None:
        return _start_cluster(arguments, arguments.brokers)
    given = {"listeners": arguments.listen, "node.id": arguments.node_id, "tidelog.metadata": arguments.metadata}
    options: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    settings = load(arguments.config, os.environ, arguments.overrides, options=options)
    return run(settings, data_dir=arguments.data, log_level=arguments.log_level, log_json=arguments.log_json)


def _start_cluster(arguments: ServeArguments, brokers: str) -> int:
    """Run several brokers of one machine under a supervisor."""
    import asyncio
    import sys

    from tidelog.common.endpoint import parse_endpoint
    from tidelog.common.settings import SettingError
    from tidelog.server.logging_setup import set_up_logging
    from tidelog.server.settings_load import load
    from tidelog.server.supervisor import BrokerPlan, Supervisor, brokers_count, supervise

    try:
        count = brokers_count(brokers)
    except ValueError as error:
        raise SettingError(str(error)) from error
    if arguments.node_id is not None:
        raise SettingError("--brokers numbers the brokers by itself; leave out --node-id")
    # Mistakes are reported once, not by every broker.
    options: dict[str, object] = {} if arguments.listen is None else {"listeners": arguments.listen}
    listeners = load(arguments.config, os.environ, arguments.overrides, options=options)["listeners"]
    endpoints = [parse_endpoint(text) for text in listeners]
    ports = [each.port + number for each in endpoints if each.port for number in range(count)]
    if len(set(ports)) != len(ports):
        raise SettingError(f"--brokers counts ports up: those of the listeners must be at least {count} apart")
    plans = []
    for node_id in range(1, count + 1):
        listening = ",".join(str(each._replace(port=each.port and each.port + node_id - 1)) for each in endpoints)
        command = [sys.executable, "-m", "tidelog", "serve", "--node-id", str(node_id), "--listen", listening]
        command += ["--data", str(arguments.data), "--log-level", arguments.log_level]
        if arguments.metadata is not None:
            command += ["--metadata", arguments.metadata]
        if arguments.config is not None:
            command += ["--config", str(arguments.config)]
        for override in arguments.overrides:
            command += ["--set", override]
        if arguments.log_json:
            command.append("--log-json")
        plans.append(BrokerPlan(node_id, command))
    set_up_logging(arguments.log_level, as_json=arguments.log_json)

    async def run_all() -> int:
        return await supervise(Supervisor(plans, prefix_logs=not arguments.log_json))

    return asyncio.run(run_all())
