"""Plain types: the bytes of Java's serializers, refusals that say what fits, and None."""

from __future__ import annotations

import math
import pickle
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog import Consumer, Producer
from tidelog.client.errors import ConfigError
from tidelog.client.serialization.pickle_refused import refusal_of_pickle
from tidelog.serialization import (
    BooleanDeserializer,
    BooleanSerializer,
    BytesDeserializer,
    BytesSerializer,
    DoubleDeserializer,
    DoubleSerializer,
    FloatDeserializer,
    FloatSerializer,
    IntegerDeserializer,
    IntegerSerializer,
    JsonDeserializer,
    JsonSerializer,
    LongDeserializer,
    LongSerializer,
    MsgpackDeserializer,
    MsgpackSerializer,
    PickleDeserializer,
    PickleSerializer,
    SerializationError,
    ShortDeserializer,
    ShortSerializer,
    StringDeserializer,
    StringSerializer,
    UUIDDeserializer,
    UUIDSerializer,
)

ONE = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

# The bytes are those that Apache Kafka's serializers of the same names give.
GOLDEN: list[tuple[Any, Any, Any, bytes]] = [
    (StringSerializer(), StringDeserializer(), "grüße €", b"gr\xc3\xbc\xc3\x9fe \xe2\x82\xac"),
    (StringSerializer("utf-16-be"), StringDeserializer("utf-16-be"), "ab", b"\x00a\x00b"),
    (StringSerializer(), StringDeserializer(), "", b""),
    (ShortSerializer(), ShortDeserializer(), -2, b"\xff\xfe"),
    (IntegerSerializer(), IntegerDeserializer(), 1, b"\x00\x00\x00\x01"),
    (IntegerSerializer(), IntegerDeserializer(), -(2**31), b"\x80\x00\x00\x00"),
    (LongSerializer(), LongDeserializer(), 2**40 + 7, b"\x00\x00\x01\x00\x00\x00\x00\x07"),
    (FloatSerializer(), FloatDeserializer(), 1.5, b"\x3f\xc0\x00\x00"),
    (DoubleSerializer(), DoubleDeserializer(), -0.1, b"\xbf\xb9\x99\x99\x99\x99\x99\x9a"),
    (BooleanSerializer(), BooleanDeserializer(), True, b"\x01"),
    (BooleanSerializer(), BooleanDeserializer(), False, b"\x00"),
    (UUIDSerializer(), UUIDDeserializer(), ONE, b"00112233-4455-6677-8899-aabbccddeeff"),
    (BytesSerializer(), BytesDeserializer(), b"\x00\xff", b"\x00\xff"),
    (JsonSerializer(), JsonDeserializer(), {"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'.encode()),
    (MsgpackSerializer(), MsgpackDeserializer(), {"a": [1, b"\x00"]}, b"\x81\xa1a\x92\x01\xc4\x01\x00"),
]


@pytest.mark.parametrize(("serializer", "deserializer", "value", "data"), GOLDEN)
def test_bytes_are_javas(serializer: Any, deserializer: Any, value: Any, data: bytes) -> None:
    assert serializer("topic", value, []) == data
    assert type(serializer("topic", value, [])) is bytes
    assert deserializer("topic", data, []) == value


@pytest.mark.parametrize(("serializer", "deserializer"), [(row[0], row[1]) for row in GOLDEN])
def test_none_passes_through(serializer: Any, deserializer: Any) -> None:
    assert serializer("topic", None, []) is None
    assert deserializer("topic", None, []) is None


@pytest.mark.parametrize(
    ("serializer", "value", "said"),
    [
        (StringSerializer(), b"bytes", "it takes a str"),
        (StringSerializer("ascii"), "ü", "ascii"),
        (StringSerializer(), "\ud800", "utf-8"),
        (IntegerSerializer(), 2**31, "LongSerializer takes 64"),
        (IntegerSerializer(), "1", "32 bits"),
        (IntegerSerializer(), 1.0, "32 bits"),
        (ShortSerializer(), -(2**15) - 1, "16 bits"),
        (LongSerializer(), 2**63, "64 bits"),
        (FloatSerializer(), 1e39, "DoubleSerializer takes 64"),
        (DoubleSerializer(), "x", "a number"),
        (DoubleSerializer(), 10**400, "a float can hold"),
        (BooleanSerializer(), 1, "True or False"),
        (UUIDSerializer(), str(ONE), "uuid.UUID"),
        (BytesSerializer(), "text", "takes bytes"),
        (JsonSerializer(), {"a": {1}}, "not JSON serializable: set"),
        (JsonSerializer(), 2**70, "64-bit"),
        (MsgpackSerializer(), {"a": {1}}, "set"),
        (MsgpackSerializer(), 2**70, "int"),
    ],
)
def test_what_does_not_fit_is_refused(serializer: Any, value: Any, said: str) -> None:
    with pytest.raises(SerializationError, match=said) as refused:
        serializer("orders", value, [])
    assert str(refused.value).startswith("topic orders: can't serialize ")
    assert type(value).__name__ in str(refused.value)


def test_a_long_value_is_not_shown_whole() -> None:
    with pytest.raises(SerializationError) as refused:
        IntegerSerializer()("orders", "x" * 10_000)  # type: ignore[arg-type]  # it is about a wrong type
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    ("deserializer", "data"),
    [
        (StringDeserializer(), b"\xff"),
        (ShortDeserializer(), b"\x00"),
        (IntegerDeserializer(), b"\x00" * 3),
        (IntegerDeserializer(), b"\x00" * 5),
        (LongDeserializer(), b""),
        (FloatDeserializer(), b"\x00" * 8),
        (DoubleDeserializer(), b"\x00" * 4),
        (BooleanDeserializer(), b"\x02"),
        (BooleanDeserializer(), b""),
        (UUIDDeserializer(), b"no uuid"),
        (UUIDDeserializer(), b"\xff" * 36),
        (JsonDeserializer(), b"{"),
        (JsonDeserializer(), b""),
        (JsonDeserializer(), b"NaN"),
        (MsgpackDeserializer(), b""),
        (MsgpackDeserializer(), b"\xc1"),
        (MsgpackDeserializer(), b"\x01\x02"),
        # An array that claims four billion items in five bytes.
        (MsgpackDeserializer(), b"\xdd\xff\xff\xff\xff"),
        (MsgpackDeserializer(), b"\x81\x80\x01"),
    ],
)
def test_broken_bytes_are_refused(deserializer: Any, data: bytes) -> None:
    with pytest.raises(SerializationError, match=rf"^topic orders: can't deserialize {len(data)} bytes: "):
        deserializer("orders", data, [])


@given(st.binary(max_size=50))
def test_no_bytes_bring_a_deserializer_down(data: bytes) -> None:
    for _, deserializer, _, _ in GOLDEN:
        try:
            deserializer("orders", data, [])
        except SerializationError:
            continue


@given(st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.uuids())
def test_round_trips(number: int, real: float, text: str, unique: uuid.UUID) -> None:
    assert LongDeserializer()("t", LongSerializer()("t", number)) == number
    back = DoubleDeserializer()("t", DoubleSerializer()("t", real))
    assert back == real or (back is not None and math.isnan(back) and math.isnan(real))
    assert StringDeserializer()("t", StringSerializer()("t", text)) == text
    assert UUIDDeserializer()("t", UUIDSerializer()("t", unique)) == unique


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(_values)
def test_json_and_msgpack_round_trip(value: Any) -> None:
    assert JsonDeserializer()("t", JsonSerializer()("t", value)) == value
    assert MsgpackDeserializer()("t", MsgpackSerializer()("t", value)) == value


def test_json_sorts_keys_and_asks_for_what_it_does_not_know() -> None:
    assert JsonSerializer(sort_keys=True)("t", {"b": 1, "a": 2}) == b'{"a":2,"b":1}'
    assert JsonSerializer(sorted)("t", {"tags": {2, 1}}) == b'{"tags":[1,2]}'


def test_buffers_become_bytes() -> None:
    for value in (bytearray(b"ab"), memoryview(b"xaby")[1:3]):
        data = BytesSerializer()("t", value)
        assert data == b"ab"
        assert type(data) is bytes


def test_an_encoding_that_is_none_is_refused_at_once() -> None:
    for made in (StringSerializer, StringDeserializer):
        with pytest.raises(ConfigError, match="no encoding is called 'utf-9'"):
            made("utf-9")


def test_pickle_is_refused() -> None:
    for made in (PickleSerializer, PickleDeserializer):
        with pytest.raises(SerializationError, match="unpickling runs whatever code") as refused:
            made()
        assert "JsonSerializer" in str(refused.value)
    assert refusal_of_pickle(StringSerializer()) is None
    assert refusal_of_pickle(bytes.decode) is None


def test_clients_refuse_functions_that_pickle() -> None:
    with pytest.raises(ConfigError, match=r"value.serializer.*pickle is not supported"):
        Producer(value_serializer=pickle.dumps)  # type: ignore[arg-type]  # it is about this mistake
    with pytest.raises(ConfigError, match=r"key.deserializer.*pickle is not supported"):
        Consumer(key_deserializer=pickle.loads)  # type: ignore[arg-type]  # and this one
