"""The commands page of the documentation, made from the command tree.

`python -m tidelog.cli.commands_docs` prints it; a test compares it with `docs/commands.md`. What always holds: every
command with its example, every argument and every option stands on the page, in the words of `--help`.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from tidelog.cli.main import COMMANDS, build_app

_INTRODUCTION = """\
# Commands

This page is made from the command itself by `python -m tidelog.cli.commands_docs > docs/commands.md`; `--help` after
any command shows the same.

A first round trip:

    tidelog serve
    tidelog topics create greetings --partitions 3
    printf 'k1:hello\\nk2:world\\n' | tidelog produce greetings --key-separator :
    tidelog consume greetings --from-beginning --exit-at-end --format '%k %v'

The client commands work with Apache Kafka, too. They find a broker by `--bootstrap`, else by the variable
TIDELOG_BOOTSTRAP, else at 127.0.0.1:9092.

## What all commands keep to

- Results go to standard output, everything else to standard error. On a terminal tables are drawn; a pipe gets plain
  columns without colour.
- `--json` prints one JSON document; `consume --json` prints one a line. Bytes that are not UTF-8 stand as base64 in a
  field whose name ends in `_base64`.
- What goes wrong is one line on standard error that starts with `tidelog:`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | refused by the broker, out of reach, or failed |
| 2 | the command or a setting is written wrongly; for `serve` also: it can't start |
| 130 | ended by Ctrl-C (`serve` ends with 0) |
| 141 | whoever read the output went away, as `head` does |
"""


def commands_markdown() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    commands = get_command(build_app()).commands  # type: ignore[attr-defined]  # a group has them
    for name in COMMANDS:
        yield from _section(f"tidelog {name}", commands[name], level=2)


def _section(path: str, command: Any, level: int) -> Iterator[str]:  # typer does not export the class of its commands
    yield f"{'#' * level} {path}\n"
    yield f"{' '.join(command.help.split())}\n"
    members = getattr(command, "commands", {})
    for name, member in members.items():
        yield from _section(f"{path} {name}", member, level + 1)
    if members:
        return
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    usage = " ".join([path, *(parameter.metavar for parameter in arguments), "[OPTIONS]"])
    yield f"    {usage}\n"
    for parameter in command.params:
        if parameter.name != "help":
            yield from _parameter(parameter)
    yield ""
    label, _, example = command.epilog.partition(": ")
    yield f"{label}:\n\n    {example}\n"


def _parameter(parameter: Any) -> Iterator[str]:  # as above
    if parameter.param_type_name == "argument":
        yield f"- `{parameter.metavar}`: {_sentence(parameter)}"
        return
    spellings = "`, `".join([*parameter.opts, *parameter.secondary_opts])
    value = "" if parameter.is_flag else f" {_metavar(parameter)}"
    yield f"- `{spellings}{value}`: {_sentence(parameter)}"


def _metavar(parameter: Any) -> str:  # as above
    if parameter.metavar is None and isinstance(parameter.default, enum.Enum):
        return "|".join(str(member.value) for member in type(parameter.default))
    return str(parameter.metavar)


def _sentence(parameter: Any) -> str:  # as above
    facts = []
    if isinstance(parameter.show_default, str):
        facts.append(f"default: {parameter.show_default}")
    elif parameter.default not in (None, False, "") and parameter.show_default:
        facts.append("on by default" if parameter.is_flag else f"default: {_default_text(parameter.default)}")
    if parameter.envvar:
        facts.append(f"environment: {parameter.envvar}")
    return f"{parameter.help} ({'; '.join(facts)})" if facts else str(parameter.help)


def _default_text(default: object) -> str:
    if isinstance(default, enum.Enum):
        return str(default.value)
    return f"{default:g}" if isinstance(default, float) else str(default)


if __name__ == "__main__":
    sys.stdout.write(commands_markdown())
