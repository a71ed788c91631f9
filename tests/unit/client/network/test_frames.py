"""Answers are cut out of the stream whole, however the bytes arrive, and lying sizes cost nothing."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.network.frames import FRAME_BYTES_MAX, FrameError, FrameReader


class Pipe:
    """What a socket would receive, in pieces of the sizes given."""

    def __init__(self, data: bytes, sizes: Iterator[int] | None = None) -> None:
        self._data = memoryview(data)
        self._sizes = sizes

    def recv_into(self, target: memoryview) -> int:
        size = min(len(self._data), len(target), next(self._sizes) if self._sizes is not None else len(target))
        target[:size] = self._data[:size]
        self._data = self._data[size:]
        return size


def read_all(reader: FrameReader, source: object) -> list[bytes]:
    frames: list[bytes] = []
    while (found := reader.read(source)) is not None:  # type: ignore[arg-type]  # only recv_into is used of it
        frames += [bytes(frame) for frame in found]
    return frames


def framed(bodies: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def forever(size: int) -> Iterator[int]:
    while True:
        yield size


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 64, 1_000])
def test_frames_of_all_sizes_in_pieces_of_one_size(piece: int) -> None:
    bodies = [bytes([number]) * size for number, size in enumerate([4, 5, 100, 252, 253, 1_000, 4, 9])]
    assert read_all(FrameReader(256), Pipe(framed(bodies), forever(piece))) == bodies


@given(st.lists(st.integers(4, 1_500), max_size=6), st.lists(st.integers(1, 1_000), min_size=1, max_size=20))
def test_frames_in_any_pieces(sizes: list[int], pieces: list[int]) -> None:
    bodies = [bytes([number % 251]) * size for number, size in enumerate(sizes)]

    def endless() -> Iterator[int]:
        while True:
            yield from pieces

    assert read_all(FrameReader(256), Pipe(framed(bodies), endless())) == bodies


@pytest.mark.parametrize("size", [0, 3, -1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_an_impossible_size_is_an_error(size: int) -> None:
    with pytest.raises(FrameError):
        FrameReader().read(Pipe(struct.pack(">i", size) + b"HTTP"))  # type: ignore[arg-type]  # as above


def test_frames_around_the_size_of_one_receive() -> None:
    bodies = [bytes(size) for size in (65_531, 65_532, 65_533, 20_000_000)]
    assert read_all(FrameReader(), Pipe(framed(bodies), forever(50_000))) == bodies


def test_a_lying_size_takes_no_memory_before_the_bytes_are_there() -> None:
    reader = FrameReader()
    reader.read(Pipe(struct.pack(">i", FRAME_BYTES_MAX) + b"x" * 1000))  # type: ignore[arg-type]  # as above
    assert reader.held_bytes < 16 * 1024 * 1024


def test_large_frames_that_are_kept_stay_as_they_are() -> None:
    bodies = [bytes([number]) * (1_000 + number) for number in range(20)]
    reader, kept = FrameReader(256), []
    source = Pipe(framed(bodies), forever(300))
    while (found := reader.read(source)) is not None:  # type: ignore[arg-type]  # as above
        kept += [(len(frame), frame[10:]) for frame in found if len(frame) % 3]
        del found
    assert [(size, bytes(end)) for size, end in kept] == [(len(body), body[10:]) for body in bodies if len(body) % 3]


def test_large_frames_use_the_same_memory_until_a_small_one_comes() -> None:
    reader = FrameReader(256)
    assert read_all(reader, Pipe(framed([bytes(1_000)] * 10))) == [bytes(1_000)] * 10
    assert reader.held_bytes == 256 + 2 * 1_000  # the one before was still held when the next one began
    assert read_all(reader, Pipe(framed([bytes(5)]))) == [bytes(5)]
    assert reader.held_bytes == 256


def test_frames_do_not_share_memory() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = FrameReader()
        theirs.sendall(framed([b"first"]))
        first = reader.read(ours)
        theirs.sendall(framed([b"other"]))
        reader.read(ours)
    assert first == [bytearray(b"first")]
