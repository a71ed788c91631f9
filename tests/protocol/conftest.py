"""Messages to test codecs with: one with every field set, and hypothesis strategies for any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st

from tidelog.coordinator.group_records import RECORD_TYPES
from tidelog.protocol import all_apis, request_class, response_class
from tidelog.protocol.declare import declaration_of
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tidelog.protocol.schema import Field, fields_of

_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_UNSIGNED = {"uint16": 16, "uint32": 32}
_LONG_TEXT = "ü" * 100  # 200 bytes: its compact length takes two

MESSAGES: list[tuple[type, int]] = [
    (cls, version)
    for api in all_apis()
    for cls in (request_class(api), response_class(api))
    for version in range(api.versions.first, api.versions.last + 1)
]
for declared in (ConsumerProtocolSubscription, ConsumerProtocolAssignment):
    MESSAGES += [(declared, version) for version in range(4)]
for kind in RECORD_TYPES:
    for part in (kind.key, kind.value):
        versions = declaration_of(part).versions
        MESSAGES += [(part, version) for version in range(versions.first, versions.last + 1)]

MakeMessage = Callable[[type, int], Any]
MakeStrategy = Callable[[type, int], st.SearchStrategy[Any]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `message_class` runs for every message in every version."""
    if "message_class" in metafunc.fixturenames:
        names = [f"{cls.__name__}-v{version}" for cls, version in MESSAGES]
        metafunc.parametrize(("message_class", "version"), MESSAGES, ids=names)


def _full_value(field: Field, version: int, seed: int) -> object:
    if field.struct is not None:
        return _full_message(field.struct, version, seed)
    assert field.wire is not None
    name = field.wire.name
    values: dict[str, object] = {
        "bool": True,
        "float64": seed + 0.5,
        "uuid": UUID(int=seed + (7 << 100)),
        "string": f"text-{seed}-ß",
        "bytes": bytes([seed % 256, 255, 0]),
        "records": bytes([seed % 256]) * 5,
    }
    return values.get(name, seed % 100 + 1)


def _full_message(cls: type, version: int, seed: int = 1) -> Any:
    values = {}
    for number, field in enumerate(fields_of(cls)):
        if not field.versions.holds(version):
            continue
        own_seed = seed * 3 + number
        if field.is_array:
            values[field.name] = [_full_value(field, version, own_seed + index) for index in range(2)]
        else:
            values[field.name] = _full_value(field, version, own_seed)  # type: ignore[assignment]  # any field's type
    return cls(**values)


@pytest.fixture(scope="session")
def full_message() -> MakeMessage:
    """Makes the message with each field of the version set to something other than its default."""
    return _full_message


def _element_strategy(field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        return _message_strategy(field.struct, version)
    assert field.wire is not None
    name = field.wire.name
    if name in _INTEGERS:
        limit = 1 << (_INTEGERS[name] - 1)
        return st.sampled_from((0, 1, -1, 127, -limit, limit - 1))
    if name in _UNSIGNED:
        return st.sampled_from((0, 1, (1 << _UNSIGNED[name]) - 1))
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "uuid": st.sampled_from((UUID(int=0), UUID(int=1), UUID(int=(1 << 128) - 1))),
        "string": st.sampled_from(("", "a", "topic", "Ĳ\0😀", "x" * 126, "x" * 127, _LONG_TEXT)),
    }
    return strategies.get(name, st.sampled_from((b"", b"\0", b"\xff" * 126, b"\x80" * 127, bytes(range(256)))))


def _message_strategy(cls: type, version: int) -> st.SearchStrategy[Any]:
    values: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields_of(cls):
        if not field.versions.holds(version):
            continue
        strategy = _element_strategy(field, version)
        if field.is_array:
            strategy = st.lists(strategy, max_size=2)
        if field.is_nullable(version):
            strategy = st.none() | strategy
        values[field.name] = strategy
    return st.builds(cls, **values)


@pytest.fixture(scope="session")
def message_strategy() -> MakeStrategy:
    """Makes the strategy for any message of the version: nulls, extremes, lengths at which a varint grows."""
    return _message_strategy
