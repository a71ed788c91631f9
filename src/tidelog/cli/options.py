"""Options that several commands share, declared once, and the clients that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidelog.cli.errors import report_warnings

if TYPE_CHECKING:
    from tidelog.client.admin import Admin
    from tidelog.client.settings import ClientOptions

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
SCHEMES = ("kafka://", "plaintext://")  # what other tools, and Kafka's listeners, put before an address

ValueT = TypeVar("ValueT")


def checked(parse: Callable[[str], ValueT], text: str, option: str) -> ValueT:
    """The parsed value; a ValueError of `parse` becomes a usage error that names the option."""
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def parse_bootstrap(text: str) -> str:
    """Addresses as the client takes them, without the scheme that some tools write; raises ValueError."""
    from tidelog.client.address import parse_addresses

    parts = []
    for part in text.split(","):
        part = part.strip()
        scheme = next((scheme for scheme in SCHEMES if part.lower().startswith(scheme)), "")
        if not scheme and "://" in part:
            known = " or ".join(SCHEMES)
            raise ValueError(f"{part!r}: an address is HOST:PORT, with {known} before it at most")
        parts.append(part[len(scheme) :].rstrip("/"))
    joined = ",".join(parts)
    parse_addresses(joined)
    return joined


def _check_bootstrap(text: str) -> str:
    return checked(parse_bootstrap, text, "--bootstrap")


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        envvar="TIDELOG_BOOTSTRAP",
        callback=_check_bootstrap,
        help="Bootstrap servers, comma-separated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to try each request, retries included."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")]
DEFAULT_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S_MAX = 5.0  # a person at a terminal wants to know sooner than the client's default would tell
CLIENT_ID = "tidelog-cli"


def client_options(bootstrap: str, timeout_s: float) -> ClientOptions:
    """The settings that the clients of all commands share."""
    report_warnings()
    return {
        "bootstrap_servers": bootstrap,
        "client_id": CLIENT_ID,
        "socket_connection_setup_timeout_ms": round(min(timeout_s, CONNECT_TIMEOUT_S_MAX) * 1000),
        "request_timeout_ms": round(timeout_s * 1000),
        "default_api_timeout_ms": round(timeout_s * 1000),
    }


@contextmanager
def administration(
    bootstrap: str, timeout_s: float, *, topics: Sequence[str] = (), groups: Sequence[str] = ()
) -> Iterator[Admin]:
    """An admin client for the length of a command.

    `topics` and `groups` are the names that the user typed; an error about one that doesn't exist suggests another.
    """
    from tidelog.cli.suggestions import with_suggestion
    from tidelog.client.admin.admin import Admin
    from tidelog.client.errors import BrokerError

    with Admin(**client_options(bootstrap, timeout_s)) as admin:
        try:
            yield admin
        except BrokerError as error:
            raise with_suggestion(admin, error, topics, groups) from error


def topic_name(text: str) -> str:
    """Refuse what no broker would accept before asking one."""
    from tidelog.common.checks import topic_name_problem

    problem = topic_name_problem(text)
    if problem is not None:
        raise typer.BadParameter(problem)
    return text


def optional_topic_name(text: str | None) -> str | None:
    return None if text is None else topic_name(text)


def topic_names(texts: list[str]) -> list[str]:
    return [topic_name(text) for text in texts]


TopicArgument = Annotated[
    str | None, typer.Argument(metavar="TOPIC", callback=optional_topic_name, help="The topic.", show_default=False)
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", callback=optional_topic_name, help="The topic, as in kcat."),
]


def one_topic(argument: str | None, option: str | None) -> str:
    """The topic of a command that takes it either way."""
    if (argument is None) == (option is None):
        raise typer.BadParameter("name one topic, as TOPIC or with --topic")
    return argument or option or ""
