"""The five codecs of a record batch, in the framings that Kafka's clients write and read.

What always holds: decompressing yields at most `max_bytes` bytes, and never allocates memory only because the input
announces a size. Any error in the input raises CorruptBatchError. The interpreter's lock is released while data is
decompressed and while memory for large output is allocated, so a thread may open a large batch without holding up the
event loop. gzip and zstd inputs may consist of several frames. Snappy is written in the Java client's xerial framing
and read in that or raw.
"""

from __future__ import annotations

import mmap
import struct
from types import ModuleType

from tidelog.records.batch import Buffer, Compression
from tidelog.records.errors import CorruptBatchError, OversizedBatchError

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024  # above the largest request a broker accepts, and harmless

GZIP_LEVEL_DEFAULT = -1  # Kafka's value for the library's default, which is 6
ZSTD_LEVEL_DEFAULT = 3
LZ4_LEVEL_DEFAULT = 9  # Kafka's default selects the fast compressor; any other level the high compression one
_LZ4_FAST_LEVEL = 0

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")
_XERIAL_VERSION = 1
_XERIAL_VERSIONS = struct.pack(">ii", _XERIAL_VERSION, _XERIAL_VERSION)
_XERIAL_BLOCK_SIZE = 32 * 1024  # the block size of the Java client's stream
# The densest element of snappy is a 3-byte copy of 64 bytes, so a larger announced size must be false.
_SNAPPY_EXPANSION_MAX = 22

# An lz4 frame: magic, flags, block size, header checksum; then blocks preceded by their sizes, the last of which is 0.
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER_BYTES_MIN = 7
_LZ4_INDEPENDENT_BLOCKS = 0x20
_LZ4_BLOCK_CHECKSUMS = 0x10
_LZ4_CONTENT_SIZE = 0x08
_LZ4_CONTENT_CHECKSUM = 0x04
_LZ4_DICTIONARY = 0x01
_LZ4_BLOCK_SIZE = struct.Struct("<I")
_LZ4_BLOCK_SIZE_MASK = 0x7FFFFFFF  # the highest bit means that the block is not compressed

_GZIP_WBITS = 31  # gzip header, and the largest window
_PIECE_BYTES = 1024 * 1024

_OUTPUT_SIZE_MIN = 64 * 1024
# Large output is allocated directly from the system: a bytearray is zeroed under the interpreter's lock. Small output
# is faster in recently used memory than in fresh pages.
_MAPPED_FROM_BYTES = 4 * 1024 * 1024
_OUTPUT_FULL = "failed to write whole buffer"  # cramjam's message if the output buffer was too small


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """`data`, compressed; a level outside the codec's range is a ValueError."""
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
        # The Java client reads only frames with independent blocks, which the one-shot function does not write.
        compressor = cramjam.lz4.Compressor(
            level=_LZ4_FAST_LEVEL if lz4_level == LZ4_LEVEL_DEFAULT else lz4_level,
            content_checksum=False,
            block_linked=False,
        )
        compressor.compress(bytes(data))  # it accepts no other kind of buffer
        return bytes(compressor.finish())
    return bytes(cramjam.zstd.compress(data, level=_checked_level(codec, level, ZSTD_LEVEL_DEFAULT, -131072, 22)))


def decompress(
    codec: Compression, data: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX, *, expected_bytes: int = 0
) -> bytes:
    """`data`, decompressed; CorruptBatchError if it is damaged, OversizedBatchError above `max_bytes`.

    A caller that knows the approximate output size passes it as `expected_bytes` and may save a second attempt.
    """
    if codec is Compression.NONE:
        return bytes(data)
    return bytes(decompress_to_view(codec, data, max_bytes, expected_bytes=expected_bytes))


def decompress_to_view(
    codec: Compression, data: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX, *, expected_bytes: int = 0
) -> memoryview:
    """Like `decompress`, but without a copy into an object of its own; for any codec but NONE."""
    if not len(data):
        raise CorruptBatchError(f"the {codec.label} data is empty")
    import cramjam

    if codec is Compression.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    modules = {Compression.GZIP: cramjam.gzip, Compression.LZ4: cramjam.lz4, Compression.ZSTD: cramjam.zstd}
    return _decompress_growing(codec, modules[codec], data, max_bytes, expected_bytes)


def _output(size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size) if size >= _MAPPED_FROM_BYTES else bytearray(size))


def _checked_level(codec: Compression, level: int | None, default: int, least: int, most: int) -> int:
    if level is None or level == default:
        return default
    if not least <= level <= most:
        raise ValueError(f"{codec.label} has the levels {least} to {most}, not {level}")
    return level


def _decompress_growing(
    codec: Compression, module: ModuleType, data: Buffer, max_bytes: int, expected_bytes: int
) -> memoryview:
    """Decompress into an output of a guessed size, and retry with four times the size if it does not fit.

    The sizes that frames announce are not used: they come from whoever sent the data.
    """
    import cramjam

    size = min(max_bytes, expected_bytes or max(_OUTPUT_SIZE_MIN, 4 * len(data)))
    while True:
        output = _output(size)
        try:
            written: int = module.decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise CorruptBatchError(f"the {codec.label} data can't be decompressed: {error}") from error
            if size >= max_bytes:
                raise OversizedBatchError(f"the {codec.label} data holds more than {max_bytes} bytes") from error
            size = min(max_bytes, 4 * size)
            continue
        return output[:written]


def _compress_xerial(data: Buffer) -> bytes:
    import cramjam

    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION)]
    with memoryview(data) as view:
        for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
            block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
            parts.append(len(block).to_bytes(4, "big"))
            parts.append(block)
    return b"".join(parts)


def decompress_strictly(codec: Compression, data: Buffer, max_bytes: int) -> memoryview:
    """Like `decompress_to_view`, but reject framings that we can read and the Java client or librdkafka can't.

    These are lz4 frames whose blocks depend on one another, several lz4 frames or gzip members, and xerial framing of a
    version other than 1, which kafka-python and aiokafka don't recognize as framing at all.
    """
    if codec is Compression.GZIP:
        return _decompress_one_member(data, max_bytes)
    if codec is Compression.LZ4:
        _check_lz4_frame(data)
    if codec is Compression.SNAPPY:
        with memoryview(data) as view:
            if view[:8] == _XERIAL_MAGIC and view[8 : _XERIAL_HEADER.size] != _XERIAL_VERSIONS:
                raise CorruptBatchError("the xerial framing of the snappy data has a version other than 1")
    return decompress_to_view(codec, data, max_bytes)


def _decompress_one_member(data: Buffer, max_bytes: int) -> memoryview:
    """Only zlib reports where a member ends. One piece at a time: copies are made under the interpreter's lock."""
    import zlib

    stream = zlib.decompressobj(wbits=_GZIP_WBITS)
    pieces: list[bytes] = []
    size = 0
    rest = data
    try:
        while not stream.eof:
            piece = stream.decompress(rest, _PIECE_BYTES)
            rest = stream.unconsumed_tail
            if not piece and not rest and not stream.eof:
                raise CorruptBatchError("the gzip data ends prematurely")
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise OversizedBatchError(f"the gzip data holds more than {max_bytes} bytes")
    except zlib.error as error:
        raise CorruptBatchError(f"the gzip data can't be decompressed: {error}") from error
    if stream.unused_data:
        raise CorruptBatchError(f"{len(stream.unused_data)} bytes follow the gzip data")
    if len(pieces) == 1:
        return memoryview(pieces[0])
    output = _output(max(size, 1))
    position = 0
    for piece in pieces:
        output[position : position + len(piece)] = piece
        position += len(piece)
    return output[:size]


def _check_lz4_frame(data: Buffer) -> None:
    with memoryview(data) as view:
        if len(view) < _LZ4_HEADER_BYTES_MIN or view[:4] != _LZ4_MAGIC:
            raise CorruptBatchError("the lz4 data does not start with a frame")
        flags = view[4]
        if not flags & _LZ4_INDEPENDENT_BLOCKS:
            raise CorruptBatchError("the lz4 blocks depend on one another, which the Java client can't read")
        position = (
            _LZ4_HEADER_BYTES_MIN + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
        )
        checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUMS else 0
        while len(view) - position >= 4:
            (size,) = _LZ4_BLOCK_SIZE.unpack_from(view, position)
            position += 4
            if not size:
                break
            position += (size & _LZ4_BLOCK_SIZE_MASK) + checksum_bytes
        else:
            raise CorruptBatchError("the lz4 data ends before its frame does")
        if position + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0) != len(view):
            raise CorruptBatchError(f"the lz4 frame ends at {position} of {len(view)} bytes")


def _decompress_snappy(data: Buffer, max_bytes: int) -> memoryview:
    with memoryview(data) as view:
        blocks = [view] if view[:8] != _XERIAL_MAGIC else _xerial_blocks(view)
        sizes = [_snappy_size(block) for block in blocks]
        size = sum(sizes)
        if size > max_bytes:
            raise OversizedBatchError(f"the snappy data holds more than {max_bytes} bytes")
        output = _output(size) if size else memoryview(b"")
        position = 0
        for block, block_size in zip(blocks, sizes, strict=True):
            _decompress_snappy_block(block, output[position : position + block_size])
            position += block_size
        return output


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    if len(view) < _XERIAL_HEADER.size:
        raise CorruptBatchError("the snappy data ends inside the xerial header")
    position = _XERIAL_HEADER.size
    blocks: list[memoryview] = []
    while position < len(view):
        if len(view) - position < 4:
            raise CorruptBatchError("the snappy data ends inside the length of a xerial block")
        length = int.from_bytes(view[position : position + 4], "big", signed=True)
        position += 4
        if not 0 < length <= len(view) - position:
            raise CorruptBatchError(f"a xerial block of {length} bytes, {len(view) - position} bytes are left")
        blocks.append(view[position : position + length])
        position += length
    return blocks


def _snappy_size(block: memoryview) -> int:
    import cramjam

    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"the snappy data can't be decompressed: {error}") from error
    if size > _SNAPPY_EXPANSION_MAX * len(block):
        raise CorruptBatchError(f"the snappy data announces {size} bytes, which {len(block)} can't hold")
    return size


def _decompress_snappy_block(block: memoryview, output: memoryview) -> None:
    import cramjam

    if not len(output):
        # Nothing is announced, so nothing may follow the announcement.
        if len(block) > 1:
            raise CorruptBatchError(f"{len(block) - 1} bytes of snappy data announce no output")
        return
    try:
        cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"the snappy data can't be decompressed: {error}") from error
