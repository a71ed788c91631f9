"""Messages to bytes and back. The first use of a message in a version compiles its codec; later uses look it up.

What always holds: whatever the bytes, `decode` returns a message or raises ProtocolError.
"""

from __future__ import annotations

import struct
from typing import Any, TypeVar

from tidelog.common.steps import Steps
from tidelog.protocol.declare import declaration_of
from tidelog.protocol.decoder import Decoder, StepDecoder, compile_decoder, compile_step_decoder
from tidelog.protocol.encoder import Encoder, StepEncoder, compile_encoder, compile_step_encoder
from tidelog.protocol.errors import ProtocolError
from tidelog.protocol.types import Part
from tidelog.protocol.wire import ELEMENTS_MAX

T = TypeVar("T")

_encoders: dict[tuple[type, int], Encoder] = {}
_decoders: dict[tuple[type, int], Decoder] = {}
_step_encoders: dict[tuple[type, int], StepEncoder] = {}
_step_decoders: dict[tuple[type, int], StepDecoder] = {}

_NOT_ENCODABLE = (struct.error, AttributeError, TypeError, UnicodeEncodeError)


def encode(message: object, version: int) -> bytes:
    """Encode the message's body. Its records, if any, must be in memory: a slice of a file has no bytes to copy."""
    parts: list[Any] = encode_parts(message, version)  # join raises a TypeError for a slice of a file
    if len(parts) == 1 and type(parts[0]) is bytes:
        return parts[0]
    return b"".join(parts)


def encode_parts(message: object, version: int) -> list[Part]:
    """Encode the message's body as parts to send in order. Records are parts of their own and are never copied."""
    encoder = _encoders.get((type(message), version)) or _encoder(type(message), version)
    try:
        return encoder(message)
    except _NOT_ENCODABLE as error:
        raise _not_encoded(message, version, error) from error


def encode_in_steps(message: object, version: int) -> Steps[list[Part]]:
    """Like encode_parts, but in smaller parts with a pause after each. Arrays may be any iterable that has a length."""
    encoder = _step_encoders.get((type(message), version)) or _step_encoder(type(message), version)
    try:
        return (yield from encoder(message))
    except _NOT_ENCODABLE as error:
        raise _not_encoded(message, version, error) from error


def decode(
    cls: type[T],
    buffer: bytes | bytearray | memoryview,
    version: int,
    offset: int = 0,
    *,
    allow_more: bool = False,
    elements_max: int = ELEMENTS_MAX,
) -> T:
    """Decode the message that starts at the offset; it must end where the buffer does unless `allow_more` is set.

    A request whose arrays have more than `elements_max` elements in total raises TooManyElementsError.
    """
    decoder = _decoders.get((cls, version)) or _decoder(cls, version)
    if type(buffer) is memoryview and (buffer.format != "B" or buffer.ndim != 1):
        buffer = buffer.cast("B")
    end = len(buffer)
    try:
        message, stop = decoder(buffer, offset, end, elements_max)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _not_decoded(cls, version, error) from error
    if stop != end and not allow_more:
        raise ProtocolError(f"{cls.__name__} version {version} has {end - stop} extra bytes after it")
    return message  # type: ignore[return-value]  # the table holds the decoder of this very class


def decode_in_steps(cls: type[T], buffer: memoryview, version: int, offset: int = 0) -> Steps[T]:
    """Decode the message that fills the buffer from the offset to its end, pausing between its elements."""
    decoder = _step_decoders.get((cls, version)) or _step_decoder(cls, version)
    end = len(buffer)
    try:
        message, stop = yield from decoder(buffer, offset, end, ELEMENTS_MAX)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _not_decoded(cls, version, error) from error
    if stop != end:
        raise ProtocolError(f"{cls.__name__} version {version} has {end - stop} extra bytes after it")
    return message  # type: ignore[return-value]  # the table holds the decoder of this very class


def _not_encoded(message: object, version: int, error: Exception) -> ProtocolError:
    return ProtocolError(f"{type(message).__name__} cannot be encoded as version {version}: {error}")


def _not_decoded(cls: type, version: int, error: Exception) -> ProtocolError:
    if isinstance(error, UnicodeDecodeError):
        problem = f"has a string that is not UTF-8: {error}"
    else:
        problem = "ends before its last field"
    return ProtocolError(f"{cls.__name__} version {version} {problem}")


def _encoder(cls: type, version: int) -> Encoder:
    _check_version(cls, version)
    encoder = _encoders[cls, version] = compile_encoder(cls, version)
    return encoder


def _decoder(cls: type, version: int) -> Decoder:
    _check_version(cls, version)
    decoder = _decoders[cls, version] = compile_decoder(cls, version)
    return decoder


def _step_encoder(cls: type, version: int) -> StepEncoder:
    _check_version(cls, version)
    encoder = _step_encoders[cls, version] = compile_step_encoder(cls, version)
    return encoder


def _step_decoder(cls: type, version: int) -> StepDecoder:
    _check_version(cls, version)
    decoder = _step_decoders[cls, version] = compile_step_decoder(cls, version)
    return decoder


def _check_version(cls: type, version: int) -> None:
    versions = declaration_of(cls).versions
    if not versions.holds(version):
        raise ProtocolError(f"{cls.__name__} has versions {versions.first}-{versions.last}, not {version}")
