from __future__ import annotations

import pytest

from tidelog.common.endpoint import Endpoint, parse_endpoint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", Endpoint("PLAINTEXT", "127.0.0.1", 9092)),
        ("PLAINTEXT://broker.example:0", Endpoint("PLAINTEXT", "broker.example", 0)),
        ("plaintext://:9092", Endpoint("PLAINTEXT", "", 9092)),
        ("external://broker.example:9093", Endpoint("EXTERNAL", "broker.example", 9093)),
        ("[::1]:9092", Endpoint("PLAINTEXT", "::1", 9092)),
        (" PLAINTEXT://[fe80::1%eth0]:65535 ", Endpoint("PLAINTEXT", "fe80::1%eth0", 65535)),
    ],
)
def test_addresses_are_understood(text: str, expected: Endpoint) -> None:
    assert parse_endpoint(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("localhost", "expected HOST:PORT"),
        ("localhost:", "expected HOST:PORT"),
        ("localhost:kafka", "expected HOST:PORT"),
        ("::1:9092", "expected HOST:PORT"),
        ("PLAINTEXT//localhost:9092", "expected HOST:PORT"),
        ("localhost:70000", "at most 65535"),
        ("SSL://localhost:9093", "only PLAINTEXT"),
        ("", "expected HOST:PORT"),
    ],
)
def test_others_are_refused_with_what_would_be_right(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_endpoint(text)


@pytest.mark.parametrize("text", ["PLAINTEXT://127.0.0.1:9092", "PLAINTEXT://[::1]:9092"])
def test_text_of_an_endpoint_can_be_parsed_again(text: str) -> None:
    assert str(parse_endpoint(text)) == text
