"""The codecs: round trips, the framings of other clients, damage, and small inputs that hold far too much."""

from __future__ import annotations

import random
import tracemalloc

import cramjam
import pytest

from tidelog.records import Compression, CorruptBatchError, compress, decompress

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
MIB = 1024 * 1024


def sample(size: int) -> bytes:
    generator = random.Random(size)
    return bytes(generator.choice(b"abcdefgh") for _ in range(size))


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("size", [1, 100, 32 * 1024, 32 * 1024 + 1, 300_000])
def test_round_trip(codec: Compression, size: int) -> None:
    data = sample(size)
    for buffer in (data, bytearray(data), memoryview(data)):
        packed = compress(codec, buffer)
        assert decompress(codec, packed) == data
        assert decompress(codec, memoryview(packed), size) == data


@pytest.mark.parametrize(
    ("codec", "least", "most"), [(Compression.GZIP, 1, 9), (Compression.LZ4, 1, 17), (Compression.ZSTD, -7, 22)]
)
def test_levels(codec: Compression, least: int, most: int) -> None:
    data = sample(20_000)
    for level in (None, least, most):
        assert decompress(codec, compress(codec, data, level)) == data


@pytest.mark.parametrize(
    ("codec", "level"), [(Compression.GZIP, 0), (Compression.GZIP, 10), (Compression.LZ4, 18), (Compression.ZSTD, 23)]
)
def test_level_out_of_range_is_refused(codec: Compression, level: int) -> None:
    with pytest.raises(ValueError, match=f"{codec.label} has the levels"):
        compress(codec, b"x", level)


def test_default_lz4_level_is_the_fast_compressor() -> None:
    data = sample(50_000)
    assert compress(Compression.LZ4, data, 9) == compress(Compression.LZ4, data)
    assert compress(Compression.LZ4, data, 10) != compress(Compression.LZ4, data)


def test_lz4_blocks_are_independent_as_the_java_client_wants_them() -> None:
    packed = compress(Compression.LZ4, sample(200_000))
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] & 0b1110_0000 == 0b0110_0000


def test_linked_lz4_blocks_are_read_too() -> None:
    data = sample(200_000)
    linked = bytes(cramjam.lz4.compress(data))
    assert linked[4] & 0b0010_0000 == 0
    assert decompress(Compression.LZ4, linked) == data


def test_snappy_is_written_in_xerial_framing() -> None:
    packed = compress(Compression.SNAPPY, sample(70_000))
    assert packed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    blocks = []
    position = 16
    while position < len(packed):
        length = int.from_bytes(packed[position : position + 4], "big")
        blocks.append(bytes(cramjam.snappy.decompress_raw(packed[position + 4 : position + 4 + length])))
        position += 4 + length
    assert [len(block) for block in blocks] == [32768, 32768, 70_000 - 65536]
    assert b"".join(blocks) == sample(70_000)


def test_raw_snappy_is_read_too() -> None:
    data = sample(70_000)
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_frames_behind_one_another(codec: Compression) -> None:
    assert decompress(codec, compress(codec, b"one ") + compress(codec, b"two")) == b"one two"


@pytest.mark.parametrize("codec", CODECS)
def test_bomb_is_refused_without_holding_it(codec: Compression) -> None:
    """The limit holds the memory down, whatever the input would grow to."""
    bomb = compress(codec, bytes(32 * MIB))
    assert len(bomb) < 2 * MIB
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError, match=f"more than {MIB} bytes"):
            decompress(codec, bomb, MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


@pytest.mark.parametrize("codec", CODECS)
def test_highly_compressed_data_within_the_limit_is_read(codec: Compression) -> None:
    assert decompress(codec, compress(codec, bytes(4 * MIB)), 4 * MIB) == bytes(4 * MIB)
    with pytest.raises(CorruptBatchError):
        decompress(codec, compress(codec, bytes(4 * MIB)), 4 * MIB - 1)


def test_snappy_that_announces_what_it_can_not_hold_is_refused() -> None:
    announced = b"\x80\x80\x80\x20" + b"\x00a"  # 64 MiB from two bytes
    with pytest.raises(CorruptBatchError, match="can't hold"):
        decompress(Compression.SNAPPY, announced, 128 * MIB)
    with pytest.raises(CorruptBatchError, match="more than 1048576"):
        decompress(Compression.SNAPPY, compress(Compression.SNAPPY, bytes(MIB + 1)), MIB)


@pytest.mark.parametrize("codec", CODECS)
def test_cut_data_is_refused_at_every_byte(codec: Compression) -> None:
    packed = compress(codec, sample(500))
    for size in range(len(packed)):
        try:
            result = decompress(codec, packed[:size], MIB)
        except CorruptBatchError:
            continue
        # A xerial stream has no end mark: cut between blocks it is just shorter. The record counts notice that.
        assert (codec, size, result) == (Compression.SNAPPY, 16, b"")


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_data_never_raises_anything_else(codec: Compression) -> None:
    generator = random.Random(int(codec))
    packed = compress(codec, sample(3000))
    for _ in range(3000):
        damaged = bytearray(packed)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            assert len(decompress(codec, damaged, MIB)) <= MIB
        except CorruptBatchError:
            continue
