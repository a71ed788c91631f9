from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

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
