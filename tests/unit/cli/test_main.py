from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import tidelog.cli.main
from tidelog import __version__
from tidelog.cli.errors import CommandError, report_warnings
from tidelog.cli.main import COMMANDS, build_app, run
from tidelog.client.errors import BrokerError, ConnectError
from tidelog.common.settings import SettingError
from tidelog.protocol import ErrorCode


def one_line(captured: pytest.CaptureFixture[str]) -> str:
    output = captured.readouterr()
    assert output.out == ""
    assert output.err.startswith("tidelog: ")
    assert output.err.count("\n") == 1
    return output.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command 'nonsense'; see 'tidelog --help'"),
        (["topics", "nonsense"], "see 'tidelog topics --help'"),
        (["topics", "create"], "Missing argument 'TOPIC...'; see 'tidelog topics create --help'"),
        (["topics", "create", "a/b"], "'a/b' may only hold ASCII letters"),
        (["topics", "create", "t", "--partitions", "0"], "--partitions"),
        (["topics", "create", "t", "--config", "x"], "'x' is not key=value"),
        (["topics", "alter", "t"], "nothing to do; give --partitions"),
        (["topics", "list", "--bootstrap", "nowhere:x"], "HOST:PORT with a port from 1 to 65535"),
        (["topics", "list", "--what"], "No such option"),
        (["topics", "lst"], "Did you mean 'list'"),
        (["produce"], "name one topic"),
        (["consume", "a", "-t", "b"], "name one topic"),
        (["consume", "a", "--offset", "soon"], "'soon' is not an offset"),
        (["configs", "describe"], "say whose settings"),
        (["configs", "describe", "--topic", "t", "--broker", "1"], "one of --topic TOPIC, --broker ID"),
        (["configs", "set", "--topic", "t", "x"], "'x' is not key=value"),
        (["produce", "t", "--acks", "2"], "--acks"),
        (["produce", "t", "--key-separator", ""], "must not be empty"),
        (["produce", "t", "--header", "x"], "'x' is not key=value"),
        (["consume", "t", "--format", "%q"], "%q is not a placeholder"),
        (["consume", "t", "--json", "--format", "%k"], "exclude each other"),
        (["consume", "t", "--offset", "1", "--from-beginning"], "exclude each other"),
        (["consume", "t", "--timestamp", "soon"], "'soon' is not a time"),
        (["consume", "t", "--max-messages", "0"], "--max-messages"),
        (["log", "dump", "/does/not/exist"], "does not exist"),
        (["serve", "--listen"], "--listen"),
        (["serve", "extra"], "extra"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert message in one_line(capsys)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["topics", "create", "--help"], ["serve", "--help"]])
def test_help_teaches_by_an_example(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    output = capsys.readouterr()
    assert "Example: tidelog" in output.out
    assert "\x1b[" not in output.out
    assert output.err == ""


@pytest.mark.parametrize("arguments", [[], ["topics"], ["configs"], ["log"]])
def test_a_group_alone_shows_its_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert "Usage: " in output.out
    assert output.err == ""


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([option]) == 0
    assert capsys.readouterr().out == f"tidelog {__version__}\n"


def every_command(group: Any, *path: str) -> Iterator[tuple[str, ...]]:  # typer does not export the class
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from every_command(command, *path, name)


def test_help_is_plain_at_any_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in ("50", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        for path in every_command(get_command(build_app())):
            assert run([*path, "--help"]) == 0
            shown = capsys.readouterr().out
            assert f"Usage: {' '.join(['tidelog', *path])}" in " ".join(shown.split())
            assert not re.search(r"<(bool|str|int|float|path)>|[{}│╭]", shown), shown
            if columns == "80":
                assert max(map(len, shown.splitlines())) <= 80


def test_commands_are_listed_in_their_order_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {}
    for path in every_command(get_command(build_app())):
        run([*path, "--help"])
        listed[path] = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0]
        assert "..." not in listed[path], "a summary is cut off"
    assert [line.split()[0] for line in listed[()].splitlines()] == list(COMMANDS)


@pytest.mark.parametrize(("package", "extra"), [("pyspark", "spark"), ("matplotlib", "charts"), ("kafka", "bench")])
def test_a_missing_extra_is_named(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> int:
        raise ModuleNotFoundError(f"No module named '{package}.sql'", name=f"{package}.sql")

    monkeypatch.setattr(tidelog.cli.main, "_run", fail)
    assert run(["replay"]) == 1
    assert f"needs {package}, which is not installed: pip install 'tidelog[{extra}]'" in one_line(capsys)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == 0
    assert capsys.readouterr().out.startswith("tidelog ")


@pytest.fixture
def fail_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Run a command that raises this."""

    def fail(error: BaseException) -> int:
        def raise_it(arguments: list[str]) -> int:
            raise error

        monkeypatch.setattr(tidelog.cli.main, "_run", raise_it)
        return run(["anything"])

    return fail


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CommandError("no\nluck"), 1, "tidelog: no luck\n"),
        (CommandError("wrong", 2), 2, "tidelog: wrong\n"),
        (SettingError("unknown setting"), 2, "tidelog: unknown setting\n"),
        (ConnectError("cannot reach"), 1, "tidelog: cannot reach\n"),
        (BrokerError(ErrorCode.INVALID_CONFIG, "it is\nbad."), 1, "tidelog: it is bad (INVALID_CONFIG)\n"),
        (FileNotFoundError(2, "No such file or directory", "x"), 1, "tidelog: x: No such file or directory\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_a_line_and_a_code(
    fail_with: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    assert fail_with(error) == code
    assert capsys.readouterr().err == message


def test_a_bug_leaves_its_traceback_in_a_file(
    fail_with: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert fail_with(ZeroDivisionError("oops")) == 1
    line = one_line(capsys)
    assert "this is a bug in tidelog: ZeroDivisionError: oops" in line
    [kept] = tmp_path.iterdir()
    assert str(kept) in line
    assert "raise_it" in kept.read_text(encoding="utf-8")


def test_what_clients_warn_of_is_told_once_in_the_form_of_all_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("tidelog")
    before = list(logger.handlers)
    logger.handlers.clear()
    try:
        report_warnings()
        report_warnings()
        for broker in (1, 1, 2):
            logging.getLogger("tidelog.client.somewhere").warning("can't reach broker %d,\ntrying again", broker)
        logging.getLogger("tidelog.client.somewhere").info("all is well")
    finally:
        logger.handlers[:] = before
    assert capsys.readouterr().err == (
        "tidelog: can't reach broker 1, trying again\ntidelog: can't reach broker 2, trying again\n"
    )
