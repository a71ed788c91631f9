from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator

import pytest

from tidelog.cli.errors import report
from tidelog.cli.output import print_json_array, print_table


def test_a_pipe_gets_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "in sync", "size"], [["a", "1,2", "10 B"], ["long[red]", "3", "1 B"]], numeric=["size"])
    assert capsys.readouterr().out.splitlines() == [
        "NAME       IN-SYNC  SIZE",
        "a          1,2      10 B",
        "long[red]  3         1 B",
    ]


def test_an_empty_table_has_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "size"], [])
    assert capsys.readouterr().out == "NAME  SIZE\n"


@pytest.mark.parametrize("documents", [[], [{"a": 1}], [{"a": 1}, {"b": "ä"}]])
def test_arrays_are_one_document(documents: list[dict[str, object]], capsys: pytest.CaptureFixture[str]) -> None:
    print_json_array(documents)
    assert json.loads(capsys.readouterr().out) == documents


def test_an_array_that_breaks_off_stays_readable(capsys: pytest.CaptureFixture[str]) -> None:
    def documents() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        print_json_array(documents())
    assert json.loads(capsys.readouterr().out) == [1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


COLUMNS = ["topic", "partition", "committed", "end", "lag", "client", "host"]
ROW = ["orders", "0", "4", "5", "1", "reader", "127.0.0.1"]


@pytest.mark.parametrize("width", [30, 50, 58, 64, 65, 80, 120])
def test_tables_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, [ROW, ROW], numeric=["partition"])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert max(map(len, shown.splitlines())) <= width
    assert shown.split().count("127.0.0.1") == 2, "cells are whole"
    assert shown.split().count("host") == (1 if width >= 65 else 2), "where a table doesn't fit, rows are blocks"


def test_a_long_cell_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    print_table(["name", "reason"], [["a", "word " * 30]])
    lines = terminal.getvalue().splitlines()
    assert terminal.getvalue().count("word") == 30, "nothing is cut off"
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines) <= 60


@pytest.mark.parametrize(
    ("name", "value", "coloured"), [("NO_COLOR", "1", False), ("TERM", "dumb", False), ("X", "", True)]
)
def test_errors_have_colour_only_for_those_who_want_it(
    name: str, value: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    report("it failed")
    assert ("\x1b[" in terminal.getvalue()) == coloured
    assert "it failed" in terminal.getvalue()
