"""The entry point of the `tidelog` command.

What always holds: a command's module is imported only when that command runs (or when all are listed), so that none
pays for another; every error ends as one line and an exit code (`tidelog.cli.errors`).

A new command is one line in COMMANDS and a module with `add_to(app)`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from tidelog.cli.errors import EXIT_BROKEN_PIPE, EXIT_USAGE, exit_code_for, report
from tidelog.cli.serve_options import parse_plain, start

if TYPE_CHECKING:
    import typer

# Each command and the module that brings it, in the order of the help.
COMMANDS = {
    "serve": "tidelog.cli.serve",
    "topics": "tidelog.cli.topics",
    "produce": "tidelog.cli.produce",
    "consume": "tidelog.cli.consume",
    "groups": "tidelog.cli.groups",
    "transactions": "tidelog.cli.transactions",
    "configs": "tidelog.cli.configs",
    "pipeline": "tidelog.cli.pipeline",
    "log": "tidelog.cli.log_files",
    "replay": "tidelog.cli.replay",
    "cluster": "tidelog.cli.cluster",
    "zookeeper": "tidelog.cli.zookeeper",
    "demo": "tidelog.cli.demo",
    "bench": "tidelog.cli.bench",
    "torture": "tidelog.cli.torture",
    "version": "tidelog.cli.version",
}

_EPILOG = "Example: tidelog serve, then in another terminal: tidelog topics create orders"


def main() -> NoReturn:
    open_standard_streams()
    sys.exit(run(sys.argv[1:]))


def open_standard_streams() -> None:
    """Replace standard streams that the caller has closed, so that no socket takes their place."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    try:
        code = _run(list(arguments))
        sys.stdout.flush()
        return code
    except SystemExit as error:
        # typer answers a broken pipe by itself, with an exit that looks like a failure.
        if isinstance(error.__context__, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - errors of all commands end here
        return exit_code_for(error)


def build_app(wanted: str | None = None) -> typer.Typer:
    """The command tree: all commands, or only the one wanted."""

    from tidelog.cli.app import App, OrderedGroup, root_options

    class Root(OrderedGroup):
        order = tuple(COMMANDS)

    app = App(
        name="tidelog",
        cls=Root,
        help="An event streaming platform: a broker that every Kafka client can talk to, and the tools around it.",
        epilog=_EPILOG,
    )

    app.callback()(root_options)
    for name, module in COMMANDS.items():
        if wanted is None or name == wanted:
            importlib.import_module(module).add_to(app)
    return app


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["serve"]:
        plain = parse_plain(arguments[1:])
        if plain is not None:
            return start(plain)
    app = build_app(arguments[0] if arguments and arguments[0] in COMMANDS else None)
    import typer

    try:
        result = app(arguments, prog_name="tidelog", standalone_mode=False)
    except typer.TyperException as error:
        return _usage_error(error)
    return result if isinstance(result, int) else 0


def _usage_error(error: typer.TyperException) -> int:
    """One line that names the command whose help explains it; a group without a command shows its help."""
    message = error.format_message()
    if message.startswith("Usage: "):
        print(message)
    elif message:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "tidelog"
        message = message.rstrip(".")
        report(f"{message}{'' if message.endswith('?') else ';'} see '{command} --help'")
    return EXIT_USAGE
