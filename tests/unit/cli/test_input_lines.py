from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.cli.input_lines import READ_BYTES, read_lines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"\xff\x00\r\n\xfe", [b"\xff\x00\r", b"\xfe"]),
    ],
)
def test_lines_keep_their_bytes(pipe: tuple[int, int], content: bytes, lines: list[bytes]) -> None:
    reading, writing = pipe
    os.write(writing, content)
    os.close(writing)
    assert [line for chunk in read_lines(reading) for line in chunk] == lines


def test_lines_longer_than_a_read(tmp_path: Path) -> None:
    long = b"x" * (2 * READ_BYTES + 5)
    path = tmp_path / "lines"
    path.write_bytes(long + b"\n" + b"short\n" + long)
    with path.open("rb") as file:
        assert [line for lines in read_lines(file.fileno()) for line in lines] == [long, b"short", long]


def test_says_when_the_input_falls_silent(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"one\ntw")
    chunks = read_lines(reading)
    assert next(chunks) == [b"one"]
    assert next(chunks) == []
    os.write(writing, b"o\n")
    os.close(writing)
    assert [line for lines in chunks for line in lines] == [b"two"]
