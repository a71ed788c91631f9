"""Options that several commands share, declared once, and the clients they lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidelog.cli.errors import report_warnings

if TYPE_CHECKING:
    from tidelog.client.admin import Admin
    from tidelog.client.settings import ClientOptions

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

ValueT = TypeVar("ValueT")


def checked(parse: Callable[[str], ValueT], text: str, option: str) -> ValueT:
    """The parsed value; what `parse` finds wrong becomes a usage error that names the option."""
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def _check_bootstrap(text: str) -> str:
    from tidelog.client.address import parse_addresses

    checked(parse_addresses, text, "--bootstrap")
    return text


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT",
        envvar="TIDELOG_BOOTSTRAP",
        callback=_check_bootstrap,
        help="A broker to ask first; several are joined by commas.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long a request, retries included, may take."),
]
DEFAULT_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S_MAX = 5.0  # whoever waits at a terminal wants to know sooner than the default says
CLIENT_ID = "tidelog-cli"


def client_options(bootstrap: str, timeout_s: float) -> ClientOptions:
    """The settings that the clients of all commands have."""
    report_warnings()
    return {
        "bootstrap_servers": bootstrap,
        "client_id": CLIENT_ID,
        "socket_connection_setup_timeout_ms": round(min(timeout_s, CONNECT_TIMEOUT_S_MAX) * 1000),
        "request_timeout_ms": round(timeout_s * 1000),
        "default_api_timeout_ms": round(timeout_s * 1000),
    }


def administration(bootstrap: str, timeout_s: float) -> Admin:
    """An admin client for the length of a command: use it with `with`."""
    from tidelog.client.admin.admin import Admin

    return Admin(**client_options(bootstrap, timeout_s))


def topic_name(text: str) -> str:
    """Refuse what no broker would take before asking one."""
    from tidelog.common.checks import topic_name_problem

    problem = topic_name_problem(text)
    if problem is not None:
        raise typer.BadParameter(problem)
    return text


def topic_names(texts: list[str]) -> list[str]:
    return [topic_name(text) for text in texts]
