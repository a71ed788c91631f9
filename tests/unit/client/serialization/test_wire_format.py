"""The bytes before a value: schema ids and paths to messages, also broken ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.serialization.wire_format import decode_indexes, encode_indexes, prefix, schema_id_of
from tidelog.serialization import SerializationError


@pytest.mark.parametrize(
    ("indexes", "data"),
    [([0], b"\x00"), ([1], b"\x02\x02"), ([1, 0], b"\x04\x02\x00"), ([0, 0], b"\x04\x00\x00"), ([64], b"\x02\x80\x01")],
)
def test_paths_are_confluents(indexes: list[int], data: bytes) -> None:
    assert encode_indexes(indexes) == data
    assert decode_indexes(b"xxxxx" + data + b"rest", 5) == (indexes, 5 + len(data))


def test_the_first_message_may_also_be_written_at_length() -> None:
    assert decode_indexes(b"\x02\x00", 0) == ([0], 2)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=10))
def test_what_is_written_is_read(schema_id: int, indexes: list[int]) -> None:
    data = prefix(schema_id) + encode_indexes(indexes)
    assert schema_id_of(data) == schema_id
    assert decode_indexes(data, 5) == (indexes, len(data))


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x00\x00\x01", b"\x01\x00\x00\x00\x01", b'{"a":1}'])
def test_bytes_without_an_id_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="no schema id"):
        schema_id_of(data)


def test_a_path_is_refused_when_it_is_cut_off_at_any_byte() -> None:
    whole = encode_indexes([1, 300, 2**31 - 1])
    for length in range(len(whole)):
        with pytest.raises(SerializationError, match="cut off"):
            decode_indexes(whole[:length], 0)


@pytest.mark.parametrize("data", [b"\x01\x00", b"\x02\x01", b"\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff"])
def test_paths_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="the path to their message"):
        decode_indexes(data, 0)
