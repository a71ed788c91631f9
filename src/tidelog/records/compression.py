"""The five codecs of a record batch, in the framings that Kafka's clients write and read.

What always holds: `decompress` gives at most `max_bytes` bytes and never allocates a size only because the input
announces it; anything wrong in the input raises CorruptBatchError. gzip, lz4 and zstd inputs may hold several frames
behind one another. Snappy is written in the xerial framing of the Java client and read in that or raw.
"""

from __future__ import annotations

import struct
from types import ModuleType

from tidelog.records.batch import Buffer, Compression
from tidelog.records.errors import CorruptBatchError, OversizedBatchError

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024  # above the largest request a broker takes, far below what could hurt it

GZIP_LEVEL_DEFAULT = -1  # Kafka's way to say: as the library does, which is 6
ZSTD_LEVEL_DEFAULT = 3
LZ4_LEVEL_DEFAULT = 9  # Kafka's default names the fast compressor; any other level names the high compression one
_LZ4_FAST_LEVEL = 0

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")
_XERIAL_VERSION = 1
_XERIAL_BLOCK_SIZE = 32 * 1024  # what the Java client's stream cuts its input into
# The densest element of snappy is a 3-byte copy of 64 bytes, so a larger announced size can only be a lie.
_SNAPPY_EXPANSION_MAX = 22

_OUTPUT_SIZE_MIN = 64 * 1024
_OUTPUT_FULL = "failed to write whole buffer"  # how cramjam says that the output given was too small


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """`data` compressed; a level outside the codec's range is a ValueError."""
    if codec is Compression.NONE:
        return bytes(data)
    import cramjam

    if codec is Compression.GZIP:
        gzip_level = _checked_level(codec, level, GZIP_LEVEL_DEFAULT, 1, 9)
        return bytes(cramjam.gzip.compress(data, level=6 if gzip_level == GZIP_LEVEL_DEFAULT else gzip_level))
    if codec is Compression.SNAPPY:
        return _compress_xerial(data)
    if codec is Compression.LZ4:
        lz4_level = _checked_level(codec, level, LZ4_LEVEL_DEFAULT, 1, 17)
        # The Java client reads only frames whose blocks are independent, which the one-shot function does not write.
        compressor = cramjam.lz4.Compressor(
            level=_LZ4_FAST_LEVEL if lz4_level == LZ4_LEVEL_DEFAULT else lz4_level,
            content_checksum=False,
            block_linked=False,
        )
        compressor.compress(bytes(data))  # it takes no other kind of buffer
        return bytes(compressor.finish())
    return bytes(cramjam.zstd.compress(data, level=_checked_level(codec, level, ZSTD_LEVEL_DEFAULT, -131072, 22)))


def decompress(
    codec: Compression, data: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX, *, expected_bytes: int = 0
) -> bytes:
    """`data` decompressed; CorruptBatchError when it is damaged, OversizedBatchError above `max_bytes`.

    A caller that knows about how much comes out says so by `expected_bytes`, and spares a second attempt.
    """
    if codec is Compression.NONE:
        return bytes(data)
    if not len(data):
        raise CorruptBatchError(f"the {codec.label} data is empty")
    import cramjam

    if codec is Compression.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    modules = {Compression.GZIP: cramjam.gzip, Compression.LZ4: cramjam.lz4, Compression.ZSTD: cramjam.zstd}
    return _decompress_growing(codec, modules[codec], data, max_bytes, expected_bytes)


def _checked_level(codec: Compression, level: int | None, default: int, least: int, most: int) -> int:
    if level is None or level == default:
        return default
    if not least <= level <= most:
        raise ValueError(f"{codec.label} has the levels {least} to {most}, not {level}")
    return level


def _decompress_growing(
    codec: Compression, module: ModuleType, data: Buffer, max_bytes: int, expected_bytes: int
) -> bytes:
    """Decompress into an output of a guessed size and try a four times larger one when it does not fit.

    The sizes that frames announce are not used: they come from whoever sent the data.
    """
    import cramjam

    size = min(max_bytes, expected_bytes or max(_OUTPUT_SIZE_MIN, 4 * len(data)))
    while True:
        output = bytearray(size)
        try:
            written: int = module.decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise CorruptBatchError(f"the {codec.label} data can't be decompressed: {error}") from error
            if size >= max_bytes:
                raise OversizedBatchError(f"the {codec.label} data holds more than {max_bytes} bytes") from error
            size = min(max_bytes, 4 * size)
            continue
        with memoryview(output) as view:
            return bytes(view[:written])


def _compress_xerial(data: Buffer) -> bytes:
    import cramjam

    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION)]
    with memoryview(data) as view:
        for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
            block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
            parts.append(len(block).to_bytes(4, "big"))
            parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    with memoryview(data) as view:
        if view[:8] != _XERIAL_MAGIC:
            return _decompress_snappy_raw(view, max_bytes, 0)
        if len(view) < _XERIAL_HEADER.size:
            raise CorruptBatchError("the snappy data ends within the xerial header")
        position = _XERIAL_HEADER.size
        parts: list[bytes] = []
        size = 0
        while position < len(view):
            if len(view) - position < 4:
                raise CorruptBatchError("the snappy data ends within the length of a xerial block")
            length = int.from_bytes(view[position : position + 4], "big", signed=True)
            position += 4
            if not 0 < length <= len(view) - position:
                raise CorruptBatchError(f"a xerial block of {length} bytes, {len(view) - position} bytes are left")
            parts.append(_decompress_snappy_raw(view[position : position + length], max_bytes, size))
            size += len(parts[-1])
            position += length
        return b"".join(parts)


def _decompress_snappy_raw(data: memoryview, max_bytes: int, size_before: int) -> bytes:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size_before + size > max_bytes:
            raise OversizedBatchError(f"the snappy data holds more than {max_bytes} bytes")
        if size > _SNAPPY_EXPANSION_MAX * len(data):
            raise CorruptBatchError(f"the snappy data announces {size} bytes, which {len(data)} can't hold")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"the snappy data can't be decompressed: {error}") from error
