from __future__ import annotations

import pytest

from tidelog.client.address import Address, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        (" broker.example:1 ", Address("broker.example", 1)),
        ("localhost", Address("localhost", 9092)),
        ("[::1]:9093", Address("::1", 9093)),
        ("[fe80::1]", Address("fe80::1", 9092)),
        ("kafka://broker.example:9093", Address("broker.example", 9093)),
        ("kafka://broker.example", Address("broker.example", 9092)),
        ("Kafka://[::1]:9093/", Address("::1", 9093)),
        ("PLAINTEXT://127.0.0.1:9092", Address("127.0.0.1", 9092)),
    ],
)
def test_reads_addresses(text: str, expected: Address) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":9092",
        "host:",
        "host:x",
        "host:0",
        "host:65536",
        "host:-1",
        "::1",
        "[::1",
        "host:１",
        "http://host:80",
        "kafka://",
        "://h",
    ],
)
def test_refuses_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|\[::1\]:9092"):
        parse_address(text)


def test_reads_several_joined_by_commas() -> None:
    assert parse_addresses("a:1, b:2,") == [Address("a", 1), Address("b", 2)]
    assert parse_addresses("kafka://a:1,b:2, kafka://c") == [Address("a", 1), Address("b", 2), Address("c", 9092)]
    with pytest.raises(ValueError, match="no broker address"):
        parse_addresses(" , ")


def test_writes_ipv6_in_brackets() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert str(Address("h", 1)) == "h:1"
