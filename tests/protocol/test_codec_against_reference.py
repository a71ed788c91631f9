"""Every message in every version: the compiled codec writes and reads what the reference codec does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.protocol import Api, all_apis, decode, encode, encode_parts, reference, request_class, response_class

_EXAMPLES_MAX = 20  # of each of 560 messages in a version, so that all of them take seconds


def test_defaults(message_class: type, version: int) -> None:
    message = message_class()
    data = encode(message, version)
    assert data == reference.encode(message, version)
    assert decode(message_class, data, version) == message


def test_every_field_set(message_class: type, version: int, full_message: Callable[[type, int], Any]) -> None:
    message = full_message(message_class, version)
    data = encode(message, version)
    assert data == reference.encode(message, version)
    assert reference.decode(message_class, data, version) == message
    for buffer in (data, bytearray(data), memoryview(data)):
        assert decode(message_class, buffer, version) == message
    assert decode(message_class, b"header" + data, version, offset=6) == message
    parts: list[Any] = encode_parts(message, version)
    assert b"".join(parts) == data


def test_any_message(
    message_class: type, version: int, message_strategy: Callable[[type, int], st.SearchStrategy[Any]]
) -> None:
    @settings(
        max_examples=_EXAMPLES_MAX,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(message_strategy(message_class, version))
    def check(message: Any) -> None:
        data = encode(message, version)
        assert data == reference.encode(message, version)
        assert decode(message_class, data, version) == message
        assert reference.decode(message_class, data, version) == message

    check()


@pytest.mark.parametrize("api", all_apis(), ids=lambda api: api.name)
def test_a_class_for_each_direction(api: Api) -> None:
    assert request_class(api).__name__ == api.name + "Request"
    assert response_class(api).__name__ == api.name + "Response"
