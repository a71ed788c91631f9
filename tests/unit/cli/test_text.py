from __future__ import annotations

import datetime

import pytest

from tidelog.cli.text import (
    duration_text,
    parse_pair,
    parse_size,
    parse_timestamp,
    plural,
    rate_text,
    size_text,
    timestamp_text,
    unescape,
)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 * 1024**3, "5.0 GiB"),
        (2**60, "1024.0 PiB"),
    ],
)
def test_sizes(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("50MB", 50_000_000),
        ("50m", 50_000_000),
        ("1.5 GiB/s", 1536 * 1024**2),
        ("10kB", 10_000),
        ("12345", 12_345),
        ("7b", 7),
    ],
)
def test_sizes_that_people_type(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "5 apples", "5iB", "1e6"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size, as in 500kB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("rate", "text"), [(999, "999 B/s"), (50_000_000, "50 MB/s"), (1_500, "1.5 kB/s"), (3 * 10**12, "3000 GB/s")]
)
def test_rates(rate: int, text: str) -> None:
    assert rate_text(rate) == text


def test_counts() -> None:
    assert plural(1, "record") == "1 record"
    assert plural(0, "record") == "0 records"
    assert plural(1234567, "record") == "1,234,567 records"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.004, "0.00 s"), (59.5, "59.50 s"), (61, "1 min 1 s"), (7320, "2 h 2 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [(-1, "-"), (0, "1970-01-01T00:00:00.000Z"), (1_700_000_000_123, "2023-11-14T22:13:20.123Z"), (2**62, str(2**62))],
)
def test_timestamps(timestamp_ms: int, text: str) -> None:
    assert timestamp_text(timestamp_ms) == text


@pytest.mark.parametrize(
    ("text", "expected"), [("", ""), (r"\t", "\t"), (r"a\nb\\n", "a\nb\\n"), (r"\\", "\\"), (r"\0", "\0"), ("%", "%")]
)
def test_escapes(text: str, expected: str) -> None:
    assert unescape(text) == expected


@pytest.mark.parametrize("text", ["\\", "a\\", "\\\\\\", "\\x"])
def test_refuses_unknown_escapes(text: str) -> None:
    with pytest.raises(ValueError, match=r"escape|backslash"):
        unescape(text)


def test_pairs() -> None:
    assert parse_pair("k=v=w", "a=b") == ("k", "v=w")
    assert parse_pair("k=", "a=b") == ("k", "")
    for wrong in ("k", "=v", ""):
        with pytest.raises(ValueError, match="as in a=b"):
            parse_pair(wrong, "a=b")


def test_times() -> None:
    assert parse_timestamp("1700000000123") == 1700000000123
    assert parse_timestamp("2023-11-14T22:13:20Z") == 1700000000000
    assert parse_timestamp("2023-11-14T23:13:20+01:00") == 1700000000000
    local = datetime.datetime(2023, 11, 14, 22, 13, 20)
    assert parse_timestamp("2023-11-14 22:13:20") == int(local.timestamp() * 1000)
    for wrong in ("yesterday", "-5", "", "12:00"):
        with pytest.raises(ValueError, match="ISO 8601"):
            parse_timestamp(wrong)
