"""Requests as named clients send them, and those that only look alike."""

from __future__ import annotations

import pytest

from tidelog.broker.client_quirks import body_start
from tidelog.protocol import ProtocolError, decode, encode
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataRequestTopic


def read(body: bytes, version: int) -> MetadataRequest:
    frame = memoryview(b"header" + body)
    return decode(MetadataRequest, frame, version, body_start(METADATA.key, version, frame, len(b"header")))


@pytest.mark.parametrize(
    ("version", "body", "creates"),
    [
        (13, "00000000010000", True),
        (12, "00000000000000", False),
        (11, "00000000010000", True),
        (10, "0000000001000000", True),
        (9, "0000000000000000", False),
    ],
)
def test_librdkafka_asks_for_all_topics_with_three_bytes_too_many(version: int, body: str, creates: bool) -> None:
    request = read(bytes.fromhex(body), version)
    assert request == MetadataRequest(topics=None, allow_auto_topic_creation=creates)


@pytest.mark.parametrize("version", range(9, 14))
@pytest.mark.parametrize("topics", [None, [], ["a"], ["", ""]])
@pytest.mark.parametrize("creates", [True, False])
def test_well_formed_requests_are_read_as_they_are(version: int, topics: list[str] | None, creates: bool) -> None:
    request = MetadataRequest(
        topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=creates,
    )
    assert read(encode(request, version), version) == request


@pytest.mark.parametrize("body", ["0000000001000000", "000000000100", "0100000000010000", "00000000010001"])
def test_other_stray_bytes_stay_an_error(body: str) -> None:
    with pytest.raises(ProtocolError):
        read(bytes.fromhex(body), 13)


def test_other_requests_are_left_alone() -> None:
    assert body_start(METADATA.key, 8, memoryview(bytes(7)), 0) == 0
    assert body_start(18, 13, memoryview(bytes(7)), 0) == 0
