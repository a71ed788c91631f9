"""The slow, obvious codec: it walks the declarations field by field and value by value.

The tests compare it with the compiled codec, byte for byte, and it shows readers what the wire format looks like.
Nothing outside the tests uses it. It handles valid messages only, and does not defend itself against hostile bytes.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any
from uuid import UUID

from tidelog.protocol.declare import declaration_of
from tidelog.protocol.schema import Field, fields_of

_NULL_STRUCT = -1
_NULL_TAGGED_STRUCT = 0
_PRESENT_STRUCT = 1


def encode(message: Any, version: int) -> bytes:
    out = BytesIO()
    _write_struct(out, message, version, declaration_of(type(message)).is_flexible(version))
    return out.getvalue()


def decode(cls: type, data: bytes, version: int) -> Any:
    source = BytesIO(data)
    message = _read_struct(source, cls, version, declaration_of(cls).is_flexible(version))
    if source.read():
        raise ValueError("bytes are left over")
    return message


def _write_struct(out: BytesIO, message: Any, version: int, flexible: bool) -> None:
    present = [field for field in fields_of(type(message)) if field.versions.holds(version)]
    for field in present:
        if not field.is_tagged(version):
            _write_field(out, field, getattr(message, field.name), version, flexible)
    if flexible:
        tagged = [field for field in present if field.is_tagged(version)]
        changed = [field for field in tagged if getattr(message, field.name) != field.default()]
        _write_uvarint(out, len(changed))
        for field in sorted(changed, key=lambda each: each.tag or 0):
            body = BytesIO()
            _write_field(body, field, getattr(message, field.name), version, flexible)
            _write_uvarint(out, field.tag or 0)
            _write_uvarint(out, len(body.getvalue()))
            out.write(body.getvalue())


def _write_field(out: BytesIO, field: Field, value: Any, version: int, flexible: bool) -> None:
    if field.is_array:
        _write_length(out, "array", None if value is None else len(value), flexible)
        for element in value or ():
            _write_element(out, field, element, version, flexible)
    elif field.struct is not None and field.is_nullable(version):
        null = _NULL_TAGGED_STRUCT if field.is_tagged(version) else _NULL_STRUCT
        out.write(struct.pack(">b", null if value is None else _PRESENT_STRUCT))
        if value is not None:
            _write_struct(out, value, version, flexible)
    else:
        _write_element(out, field, value, version, flexible)


def _write_element(out: BytesIO, field: Field, value: Any, version: int, flexible: bool) -> None:
    if field.wire is None:
        _write_struct(out, value, version, flexible)
    elif field.wire.name == "uuid":
        out.write(value.bytes)
    elif field.wire.size_bytes:
        out.write(struct.pack(">" + field.wire.code, value))
    else:
        raw = value.encode() if isinstance(value, str) else value
        _write_length(out, field.wire.name, None if raw is None else len(raw), flexible)
        out.write(raw or b"")


def _write_length(out: BytesIO, kind: str, length: int | None, flexible: bool) -> None:
    if flexible:
        _write_uvarint(out, 0 if length is None else length + 1)
    else:
        out.write(struct.pack(">h" if kind == "string" else ">i", -1 if length is None else length))


def _write_uvarint(out: BytesIO, number: int) -> None:
    while number > 127:
        out.write(bytes([number % 128 + 128]))
        number //= 128
    out.write(bytes([number]))


def _read_struct(source: BytesIO, cls: type, version: int, flexible: bool) -> Any:
    values: dict[str, Any] = {}
    tagged: dict[int, Field] = {}
    for field in fields_of(cls):
        if field.is_tagged(version) and field.tag is not None:
            tagged[field.tag] = field
        elif field.versions.holds(version):
            values[field.name] = _read_field(source, field, version, flexible)
    if flexible:
        for _ in range(_read_uvarint(source)):
            tag = _read_uvarint(source)
            body = BytesIO(source.read(_read_uvarint(source)))
            if tag in tagged:
                values[tagged[tag].name] = _read_field(body, tagged[tag], version, flexible)
    return cls(**values)


def _read_field(source: BytesIO, field: Field, version: int, flexible: bool) -> Any:
    if field.is_array:
        length = _read_length(source, "array", flexible)
        return None if length is None else [_read_element(source, field, version, flexible) for _ in range(length)]
    if field.struct is not None and field.is_nullable(version):
        null = _NULL_TAGGED_STRUCT if field.is_tagged(version) else _NULL_STRUCT
        if struct.unpack(">b", source.read(1))[0] <= null:
            return None
    return _read_element(source, field, version, flexible)


def _read_element(source: BytesIO, field: Field, version: int, flexible: bool) -> Any:
    if field.wire is None:
        assert field.struct is not None
        return _read_struct(source, field.struct, version, flexible)
    if field.wire.name == "uuid":
        return UUID(bytes=source.read(16))
    if field.wire.size_bytes:
        return struct.unpack(">" + field.wire.code, source.read(field.wire.size_bytes))[0]
    length = _read_length(source, field.wire.name, flexible)
    if length is None:
        return None
    raw = source.read(length)
    return raw.decode() if field.wire.name == "string" else raw


def _read_length(source: BytesIO, kind: str, flexible: bool) -> int | None:
    if flexible:
        length = _read_uvarint(source) - 1
    elif kind == "string":
        length = struct.unpack(">h", source.read(2))[0]
    else:
        length = struct.unpack(">i", source.read(4))[0]
    return None if length < 0 else length


def _read_uvarint(source: BytesIO) -> int:
    number, unit = 0, 1
    while True:
        byte = source.read(1)[0]
        number += byte % 128 * unit
        if byte < 128:
            return number
        unit *= 128
