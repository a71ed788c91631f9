"""The base of the command tree: typer's classes with plain help.

What always holds: help is text that reads the same on a terminal, in a pipe and at any width, without boxes and
without the names of Python's types; commands are listed in the order in which they are declared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup


class PlainCommand(TyperCommand):
    """A command whose help names its arguments as they are typed."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # typer does not export the class of contexts
        arguments = [_argument_text(each) for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *arguments]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # as above
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                rows[parameter.param_type_name].append(
                    (_argument_text(parameter), record[1]) if is_argument else record
                )
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            if rows[kind]:
                with formatter.section(title):
                    formatter.write_dl(rows[kind])


def _argument_text(argument: Any) -> str:  # as above
    return str(argument.metavar or argument.name.upper())


class OrderedGroup(TyperGroup):
    """A group of commands that is listed in the order of `order`, for those that it names."""

    order: tuple[str, ...] = ()

    def list_commands(self, ctx: Any) -> list[str]:  # as above
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: self.order.index(name) if name in self.order else len(self.order))


class RunnableGroup(OrderedGroup):
    """A group that is a command of its own, too: its options are shown as a command's."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # as above
        return ["[OPTIONS]", "[COMMAND]"]


class App(typer.Typer):
    """A tree of commands, or a part of one."""

    def __init__(self, **options: Any) -> None:  # typer's own
        defaults: dict[str, Any] = {
            "no_args_is_help": True,
            "pretty_exceptions_enable": False,
            "rich_markup_mode": None,
            "context_settings": {"help_option_names": ["-h", "--help"]},
        }
        super().__init__(**(defaults | options))

    def command(  # type: ignore[override]  # the options are typer's own, whichever its version has
        self, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return super().command(name, cls=PlainCommand, **options)


def _print_version(wanted: bool) -> None:
    if wanted:
        from tidelog import __version__

        typer.echo(f"tidelog {__version__}")
        raise typer.Exit


def root_options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """The options of `tidelog` itself."""
