"""Whatever the bytes: a message or ProtocolError, at once, and without memory for what was only announced."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.protocol import ProtocolError, RequestHeader, decode, decode_request_header, encode, encode_request_header
from tidelog.protocol.messages.k00_produce import ProduceRequest
from tidelog.protocol.messages.k01_fetch import FetchRequest, FetchTopic, ForgottenTopic
from tidelog.protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tidelog.protocol.messages.k18_api_versions import ApiVersionsRequest
from tidelog.protocol.messages.k19_create_topics import CreateTopicsRequest
from tidelog.protocol.messages.k20_delete_topics import DeleteTopicsRequest
from tidelog.protocol.wire import ELEMENTS_MAX, write_uvarint

_MUTATIONS = 60  # of each message in each version
_MEMORY_BYTES_MAX = 256 * 1024  # many times what a refused message of a few hundred bytes needs

MakeMessage = Callable[[type, int], Any]


def test_truncated_at_every_byte(message_class: type, version: int, full_message: MakeMessage) -> None:
    data = encode(full_message(message_class, version), version)
    for length in range(len(data)):
        with pytest.raises(ProtocolError):
            decode(message_class, data[:length], version)


def test_followed_by_garbage(message_class: type, version: int, full_message: MakeMessage) -> None:
    with pytest.raises(ProtocolError, match="extra bytes"):
        decode(message_class, encode(full_message(message_class, version), version) + b"\0", version)


def test_mutated_at_random(message_class: type, version: int, full_message: MakeMessage) -> None:
    data = encode(full_message(message_class, version), version)
    chance = random.Random(f"{message_class.__name__}-{version}")
    for _ in range(_MUTATIONS if data else 0):
        mutated = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            position = chance.randrange(len(mutated))
            mutated[position : position + chance.choice((0, 1, 1, 4))] = chance.choice(
                (b"\xff", b"\x7f", b"\x80", b"\x00", b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", chance.randbytes(1))
            )
        try:
            message: object = decode(message_class, mutated, version)
        except ProtocolError:
            continue
        again = encode(message, version)
        assert encode(decode(message_class, again, version), version) == again


@pytest.mark.parametrize(
    ("cls", "version"),
    [(FetchRequest, 4), (FetchRequest, 18), (MetadataResponse, 0), (MetadataResponse, 13), (ProduceRequest, 9)],
    ids=str,
)
def test_lying_lengths_allocate_nothing(cls: type, version: int, full_message: MakeMessage) -> None:
    data = encode(full_message(cls, version), version)
    decode(cls, data, version)
    for position in range(len(data)):
        for lie in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x00\xff\xff\xff"):
            lying = data[:position] + lie + data[position + len(lie) :]
            tracemalloc.start()
            try:
                decode(cls, lying, version)
            except ProtocolError:
                pass
            finally:
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
            assert peak < _MEMORY_BYTES_MAX


def test_array_longer_than_the_bytes_that_remain() -> None:
    fixed = encode(FetchRequest(), 4)[:-4]
    for announced in (1, 1000, 0x7FFFFFFF):
        with pytest.raises(ProtocolError, match=r"FetchRequest\.topics has a length of"):
            decode(FetchRequest, fixed + struct.pack(">i", announced), 4)


def test_array_is_held_against_the_least_that_its_elements_take() -> None:
    data = encode(MetadataRequest(topics=[]), 1)
    assert data == struct.pack(">i", 0)
    with pytest.raises(ProtocolError, match="has a length of 3, but only 5 bytes are left"):
        decode(MetadataRequest, struct.pack(">i", 3) + bytes(5), 1)


def test_null_where_none_may_be() -> None:
    with pytest.raises(ProtocolError, match=r"DeleteTopicsRequest\.topic_names must not be null"):
        decode(DeleteTopicsRequest, struct.pack(">ii", -1, 0), 1)
    one = encode(FetchRequest(topics=[FetchTopic(topic="a")]), 4)
    position = one.index(b"\x00\x01a")
    with pytest.raises(ProtocolError, match=r"FetchRequest\.topics\.topic must not be null"):
        decode(FetchRequest, one[:position] + b"\xff\xff" + one[position + 3 :], 4)


def test_string_that_is_not_utf8() -> None:
    data = encode(ApiVersionsRequest(client_software_name="ab", client_software_version="1"), 3)
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode(ApiVersionsRequest, data.replace(b"ab", b"a\xff"), 3)


def test_varint_of_more_than_32_bits() -> None:
    rest = encode(ApiVersionsRequest(), 3)[1:]
    for length in (b"\xff\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x80\x01"):
        with pytest.raises(ProtocolError, match="32 bits"):
            decode(ApiVersionsRequest, length + rest, 3)


def test_varint_longer_than_it_need_be_is_read() -> None:
    data = encode(ApiVersionsRequest(client_software_name="ab"), 3)
    assert data.startswith(b"\x03ab")
    assert decode(ApiVersionsRequest, b"\x83\x00" + data[1:], 3) == ApiVersionsRequest(client_software_name="ab")


def test_string_longer_than_strings_may_be() -> None:
    with pytest.raises(ProtocolError, match="32768 bytes"):
        decode(ApiVersionsRequest, b"\x81\x80\x02" + b"a" * 0x8000 + b"\x01\x00", 3)
    with pytest.raises(ProtocolError, match="32768 bytes"):
        encode(ApiVersionsRequest(client_software_name="a" * 0x8000), 3)
    longest = ApiVersionsRequest(client_software_name="a" * 0x7FFF)
    assert decode(ApiVersionsRequest, encode(longest, 3), 3) == longest


def test_unknown_tags_are_skipped() -> None:
    known = CreateTopicsRequest(timeout_ms=7)
    data = encode(known, 5)
    assert data.endswith(b"\0")
    unknown = b"\x02" + b"\x05\x03abc" + b"\x80\x01\x00"  # tag 5 with three bytes, tag 128 with none
    assert decode(CreateTopicsRequest, data[:-1] + unknown, 5) == known


def test_tag_that_claims_more_than_is_there() -> None:
    data = encode(CreateTopicsRequest(), 5)[:-1]
    for section in (b"\x01\x05\x04abc", b"\x01\x05\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x0f\x00\x00"):
        with pytest.raises(ProtocolError):
            decode(CreateTopicsRequest, data + section, 5)


def test_known_tag_that_does_not_fill_its_size() -> None:
    data = encode(FetchRequest(cluster_id="c"), 12)
    assert data.endswith(b"\x01\x00\x02\x02c")
    for section in (b"\x01\x00\x03\x02c\x00", b"\x01\x00\x01\x02c"):
        with pytest.raises(ProtocolError):
            decode(FetchRequest, data[:-5] + section, 12)


def test_a_request_has_a_bounded_number_of_elements() -> None:
    half = [FetchTopic(topic="x")] * (ELEMENTS_MAX // 2)
    numbers = [ForgottenTopic(topic="x", partitions=[1] * (ELEMENTS_MAX // 2 - 1) * 8)]
    fits = encode(FetchRequest(topics=half, forgotten_topics_data=numbers), 12)
    assert len(decode(FetchRequest, fits, 12).topics) == len(half)
    too_many = encode(FetchRequest(topics=half, forgotten_topics_data=numbers * 2), 12)
    with pytest.raises(ProtocolError, match="elements"):
        decode(FetchRequest, too_many, 12)


def test_tagged_fields_count_as_elements() -> None:
    tags = b"\x7f\x00" * (ELEMENTS_MAX + 1)
    count = write_uvarint(ELEMENTS_MAX + 1)
    empty = encode(MetadataRequest(topics=[]), 12)
    with pytest.raises(ProtocolError, match="elements"):
        decode(MetadataRequest, empty[:-1] + count + tags, 12)
    header = encode_request_header(RequestHeader(3, 12, 1, None))
    with pytest.raises(ProtocolError, match="elements"):
        decode_request_header(header[:-1] + count + tags)


def test_a_response_has_any_number_of_elements() -> None:
    topics = [MetadataResponseTopic(name="x")] * (ELEMENTS_MAX + 1)
    assert len(decode(MetadataResponse, encode(MetadataResponse(topics=topics), 12), 12).topics) == len(topics)


def test_a_request_of_the_largest_number_of_elements() -> None:
    topics = [MetadataRequestTopic(name="x")] * ELEMENTS_MAX
    assert len(decode(MetadataRequest, encode(MetadataRequest(topics=topics), 12), 12).topics or ()) == len(topics)
