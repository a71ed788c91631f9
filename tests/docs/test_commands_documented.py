"""The commands page holds what the command holds, and every command teaches by an example."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tidelog.cli.commands_docs import commands_markdown
from tidelog.cli.main import COMMANDS, build_app

ROOT = Path(__file__).parents[2]


def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:  # typer does not export the class of its commands
    members = getattr(command, "commands", None)
    if members is None or command.invoke_without_command:
        yield path, command
    for name, member in (members or {}).items():
        yield from leaves(member, f"{path} {name}")


WITHOUT_BROKER = ("serve", "zookeeper", "log", "version", "bench")
# They ask the registry of pipelines, not a broker.
OF_THE_REGISTRY = {f"tidelog pipeline {name}" for name in ("list", "status", "stop", "history", "settings")}
OF_KEPT_FILES = {f"tidelog torture {name}" for name in ("check", "report")}
LEAVES = dict(leaves(get_command(build_app()), "tidelog"))


def test_commands_page_is_what_the_command_says() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert page == commands_markdown(), "run: python -m tidelog.cli.commands_docs > docs/commands.md"


def test_the_registry_names_what_its_modules_bring() -> None:
    assert {path.split()[1] for path in LEAVES} == set(COMMANDS)


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_has_help_and_a_true_example(path: str) -> None:
    command = LEAVES[path]
    assert command.help
    assert command.epilog.startswith("Example: ")
    assert path in command.epilog, "the example shows this very command"
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    mentioned = re.findall(r"(?<!\S)--[a-z-]+", command.epilog.split(path, 1)[1].split("|")[0])
    assert set(mentioned) <= known


@pytest.mark.parametrize("path", LEAVES)
def test_every_option_and_argument_has_help(path: str) -> None:
    for parameter in LEAVES[path].params:
        assert parameter.help, parameter.name
        assert parameter.help.endswith("."), parameter.name


@pytest.mark.parametrize(
    "path",
    [path for path in LEAVES if path.split()[1] not in WITHOUT_BROKER and path not in OF_THE_REGISTRY | OF_KEPT_FILES],
)
def test_every_client_command_takes_bootstrap_and_json(path: str) -> None:
    options = {option for parameter in LEAVES[path].params for option in parameter.opts}
    assert {"--bootstrap", "--json"} <= options
