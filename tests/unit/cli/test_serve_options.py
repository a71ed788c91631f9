from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidelog.cli.main
import tidelog.cli.serve
from tidelog.cli.main import build_app, run
from tidelog.cli.serve_options import SERVE_OPTIONS, ServeArguments, parse_plain

WORDS = st.sampled_from(
    [
        *(option.flag for option in SERVE_OPTIONS.values()),
        "--set=a=b",
        "--log-level=debug",
        "--log-level=none",
        "--data=x y",
        "--log-json=1",
        "--listen=",
        "--lis",
        "--",
        "-x",
        "127.0.0.1:0",
        "debug",
        "a.b=c=d",
        "",
    ]
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServeArguments]:
    """What the command would have started, instead of starting it."""
    seen: list[ServeArguments] = []

    def start(arguments: ServeArguments) -> int:
        seen.append(arguments)
        return 0

    monkeypatch.setattr(tidelog.cli.serve, "start", start)
    monkeypatch.setattr(tidelog.cli.main, "start", start)
    return seen


def test_reads_all_options() -> None:
    parsed = parse_plain(
        [
            "--listen",
            "h:1",
            "--data=d",
            "--config",
            "c.toml",
            "--set",
            "a=b",
            "--set=c=d",
            "--log-level",
            "error",
            "--log-json",
        ]
    )
    assert parsed == ServeArguments("h:1", Path("d"), Path("c.toml"), ["a=b", "c=d"], "error", True)


def test_options_set_the_fields_they_are_named_by() -> None:
    assert set(SERVE_OPTIONS) == {field.name for field in fields(ServeArguments)}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--listen"], ["--lis", "h:1"], ["--log-level", "loud"], ["--log-json=yes"], ["extra"]]
)
def test_leaves_what_is_not_plain_to_typer(arguments: list[str]) -> None:
    assert parse_plain(arguments) is None


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(WORDS, max_size=6))
def test_reads_as_typer_reads(started: list[ServeArguments], arguments: list[str]) -> None:
    plain = parse_plain(arguments)
    if plain is None:
        return
    started.clear()
    assert build_app("serve")(["serve", *arguments], prog_name="tidelog", standalone_mode=False) == 0
    assert started == [plain]


def test_serve_without_options_needs_no_typer(started: list[ServeArguments], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(wanted: str | None = None) -> None:
        raise AssertionError("the command tree was built")

    monkeypatch.setattr(tidelog.cli.main, "build_app", refuse)
    assert run(["serve", "--listen", "127.0.0.1:0"]) == 0
    assert started == [ServeArguments(listen="127.0.0.1:0")]
