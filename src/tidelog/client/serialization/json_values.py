"""JSON without a schema, by orjson: the whole value is one JSON document in UTF-8.

What always holds: the output is compact and valid JSON (NaN and infinities are written as null, as orjson does).
Dataclasses, datetimes, UUIDs and enums are supported directly. For values with a schema see `json_schema`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from tidelog.client.serialization.contract import Headers, cannot_deserialize, cannot_serialize
from tidelog.client.serialization.objects import BuildsObjects

T = TypeVar("T")


class JsonSerializer:
    """Serializes an object as JSON; `default` converts objects that JSON has no form for."""

    def __init__(self, default: Callable[[Any], Any] | None = None, *, sort_keys: bool = False) -> None:
        self._default = default
        self._options = orjson.OPT_SORT_KEYS if sort_keys else 0

    def __call__(self, topic: str, value: object, headers: Headers = (), /) -> bytes | None:
        if value is None:
            return None
        try:
            return orjson.dumps(value, self._default, self._options)
        except orjson.JSONEncodeError as error:
            raise cannot_serialize(topic, value, str(error)) from error


class JsonDeserializer(BuildsObjects[T]):
    """Deserializes JSON to dicts, lists and plain values, or to what `into` makes of them."""

    def __call__(self, topic: str, data: bytes | None, headers: Headers = (), /) -> T | None:
        if data is None:
            return None
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise cannot_deserialize(topic, data, f"they are not JSON ({error})") from error
        built: T = value if self._build is None else self._build(topic, value)
        return built
