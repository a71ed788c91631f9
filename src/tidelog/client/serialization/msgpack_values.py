"""MessagePack: compact binary values without a schema.

What always holds: str and bytes stay distinct (msgpack's `use_bin_type`). Lengths claimed by a message are checked
against its size before memory is allocated, so a broken record costs no more than its own bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tidelog.client.serialization.contract import Headers, cannot_deserialize, cannot_serialize, missing_extra
from tidelog.client.serialization.objects import BuildsObjects, to_plain

try:
    import msgpack
except ImportError as missing:
    raise missing_extra("MsgpackSerializer", "msgpack", "msgpack") from missing

T = TypeVar("T")


class MsgpackSerializer:
    """Serializes an object as MessagePack; datetimes with a time zone become timestamps, dataclasses become maps."""

    def __init__(self, default: Callable[[Any], Any] | None = None) -> None:
        self._default = default

    def __call__(self, topic: str, value: object, headers: Headers = (), /) -> bytes | None:
        if value is None:
            return None
        try:
            packed: bytes = msgpack.packb(value, default=self._known_otherwise, use_bin_type=True, datetime=True)
        except (TypeError, ValueError, OverflowError) as error:
            raise cannot_serialize(topic, value, str(error)) from error
        return packed

    def _known_otherwise(self, value: Any) -> Any:
        """Converts an object that MessagePack has no form for."""
        plain = to_plain(value)
        if plain is not value:
            return plain
        if self._default is None:
            raise TypeError(f"msgpack can't hold a {type(value).__name__}")
        return self._default(value)


class MsgpackDeserializer(BuildsObjects[T]):
    """Deserializes MessagePack to dicts, lists and plain values, or to what `into` makes of them."""

    def __call__(self, topic: str, data: bytes | None, headers: Headers = (), /) -> T | None:
        if data is None:
            return None
        try:
            value = msgpack.unpackb(data, raw=False, timestamp=3, strict_map_key=False)
        except (msgpack.UnpackException, ValueError, TypeError) as error:
            reason = str(error) or type(error).__name__
            raise cannot_deserialize(topic, data, f"they are not msgpack ({reason})") from error
        built: T = value if self._build is None else self._build(topic, value)
        return built
