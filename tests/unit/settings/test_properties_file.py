"""Java's properties format, as java.util.Properties reads it."""

from __future__ import annotations

import pytest

from tidelog.server.properties_file import parse_properties


def read(text: str) -> dict[str, str]:
    return {name: value for name, value, _ in parse_properties(text)}


@pytest.mark.parametrize(
    "line", ["node.id=1", "node.id:1", "node.id 1", "node.id = 1", "  node.id\t:\t1", "node.id\\\n  =1"]
)
def test_separators(line: str) -> None:
    assert read(line) == {"node.id": "1"}


def test_comments_and_blank_lines_are_left_out() -> None:
    assert read("# a=1\n! b=2\n\n   \n  # c=3\nd=4 # kept\n") == {"d": "4 # kept"}


def test_a_backslash_joins_lines_without_the_leading_blanks() -> None:
    assert read("log.dirs=/a,\\\n    /b,\\\n    /c\nnode.id=1") == {"log.dirs": "/a,/b,/c", "node.id": "1"}


def test_two_backslashes_do_not_join() -> None:
    assert read("a=x\\\\\nb=y") == {"a": "x\\", "b": "y"}


def test_a_comment_sign_on_a_joined_line_is_text() -> None:
    assert read("a=x\\\n#y") == {"a": "x#y"}


def test_a_backslash_at_the_end_of_the_file_ends_the_line() -> None:
    assert read("a=x\\") == {"a": "x"}


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("a\\=b=c", "a=b", "c"),
        ("a\\ b=c", "a b", "c"),
        ("a=\\t\\n\\r\\f", "a", "\t\n\r\f"),
        ("a=\\u00e9\\u0041", "a", "éA"),
        ("a=C:\\\\logs\\:x", "a", "C:\\logs:x"),
        ("a==b", "a", "=b"),
        ("a", "a", ""),
        ("a=", "a", ""),
        ("a=trailing ", "a", "trailing "),
    ],
)
def test_escapes(text: str, name: str, value: str) -> None:
    assert read(text) == {name: value}


def test_a_bad_escape_says_its_line() -> None:
    with pytest.raises(ValueError, match=r"^3: .*hexadecimal"):
        list(parse_properties("a=1\n\nb=\\u00g0"))


def test_lines_are_counted_from_where_an_entry_starts() -> None:
    assert [(name, line) for name, _, line in parse_properties("#x\na=1,\\\n2\nb=3")] == [("a", 2), ("b", 4)]
