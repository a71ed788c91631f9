"""Parts leave in order and whole, whatever the kernel takes at a time, and slices are always let go."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from tidelog.broker.outgoing import SLICE_READ_MAX_BYTES, OutgoingQueue, Part, SliceCutShort


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On a disk: /tmp may be in memory, from where nothing can be taken out."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        yield Path(path)


class _Slice:
    def __init__(self, path: Path, position: int, size_bytes: int) -> None:
        self.fd = os.open(path, os.O_RDONLY)
        self.position = position
        self.size_bytes = size_bytes
        self.is_recent = False
        self.released = False

    def read(self) -> bytes:
        return os.pread(self.fd, self.size_bytes, self.position)

    def release(self) -> None:
        self.released = True
        os.close(self.fd)


class _Sink:
    """Stands in for a socket; takes `take_bytes` at a time and then blocks until the next call of `send`."""

    def __init__(self, path: Path, take_bytes: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.path = path
        self.take_bytes = take_bytes
        self.calls = 0
        self.is_corked = False
        self._blocked = False

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CORK)
        self.is_corked = bool(value)

    def sendmsg(self, buffers: Sequence[bytes], _ancillary: object, _flags: int) -> int:
        self.calls += 1
        if self._blocked:
            self._blocked = False
            raise BlockingIOError
        self._blocked = True
        return os.write(self._fd, b"".join(buffers)[: self.take_bytes])

    def send(self, data: bytes, _flags: int = 0) -> int:
        return self.sendmsg([data], (), 0)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


class _MeteredSink(_Sink):
    """Takes so many bytes in all, with a part of the call that reaches the limit, and then blocks once."""

    def __init__(self, path: Path, room_bytes: int) -> None:
        super().__init__(path, take_bytes=room_bytes)
        self.flags: list[int] = []

    def sendmsg(self, buffers: Sequence[bytes], _ancillary: object, flags: int) -> int:
        self.calls += 1
        self.flags.append(flags)
        data = b"".join(buffers)
        return os.write(self._fd, data[: self.take_room(len(data))])

    def send(self, data: bytes, flags: int = 0) -> int:
        return self.sendmsg([data], (), flags)

    def take_room(self, wanted_bytes: int) -> int:
        if not self.take_bytes:
            self.take_bytes = 1 << 30
            raise BlockingIOError
        room_bytes = min(self.take_bytes, wanted_bytes)
        self.take_bytes -= room_bytes
        return room_bytes


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[_Sink]:
    sink = _Sink(tmp_path / "sink", take_bytes=1 << 20)
    yield sink
    sink.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "segment.log"
    path.write_bytes(bytes(range(256)) * 1024)
    return path


def _send_all(queue: OutgoingQueue, sink: _Sink) -> None:
    for _ in range(10_000):
        if queue.send(cast(socket.socket, sink)):
            assert queue.waiting_bytes == 0
            return
        if queue.is_cold:
            queue.is_cold = False
            queue.bring_in()()
    raise AssertionError("the queue never got empty")


@pytest.mark.parametrize("take_bytes", [1, 2, 3, 7, 1000])
def test_bytes_leave_in_order_whatever_is_taken_at_a_time(sink: _Sink, take_bytes: int) -> None:
    sink.take_bytes = take_bytes
    queue = OutgoingQueue()
    parts: list[Part] = [b"abc", bytearray(b"defg"), b"", memoryview(b"hijklm")]
    queue.add(parts)
    _send_all(queue, sink)
    assert sink.path.read_bytes() == b"abcdefghijklm"
    assert queue.sent_bytes == 13
    assert not queue


def test_many_small_parts_take_few_calls(sink: _Sink) -> None:
    queue = OutgoingQueue()
    queue.add([b"x"] * 60)
    assert queue.send(cast(socket.socket, sink))
    assert sink.calls == 1


def test_small_slices_are_read_and_released_when_they_are_queued(sink: _Sink, log: Path) -> None:
    part = _Slice(log, 5, SLICE_READ_MAX_BYTES)
    queue = OutgoingQueue()
    queue.add([b"head", part, b"tail"])
    assert part.released
    _send_all(queue, sink)
    assert sink.path.read_bytes() == b"head" + log.read_bytes()[5 : 5 + SLICE_READ_MAX_BYTES] + b"tail"


def test_thousands_of_small_slices_do_not_fill_the_memory(sink: _Sink, log: Path) -> None:
    slices = [_Slice(log, number, SLICE_READ_MAX_BYTES) for number in range(200)]
    queue = OutgoingQueue()
    queue.add([b"head", *slices, b"tail"])
    assert 1 << 20 < queue.waiting_bytes < (1 << 20) + 2 * SLICE_READ_MAX_BYTES
    sink.take_bytes = 1 << 20
    _send_all(queue, sink)
    assert all(part.released for part in slices)
    content = log.read_bytes()
    expected = b"".join(content[number : number + SLICE_READ_MAX_BYTES] for number in range(200))
    assert sink.path.read_bytes() == b"head" + expected + b"tail"


def test_large_slices_are_sent_from_the_file_and_released_after_their_last_byte(sink: _Sink, log: Path) -> None:
    part = _Slice(log, 100, 100_000)
    queue = OutgoingQueue()
    queue.add([b"head", part, b"tail"])
    assert not part.released
    _send_all(queue, sink)
    assert part.released
    assert sink.path.read_bytes() == b"head" + log.read_bytes()[100:100_100] + b"tail"


@pytest.mark.parametrize("room_bytes", [0, 1, 3, 4, 5, 99_999, 100_003, 100_004, 100_005, 100_007, 100_008, 1 << 30])
def test_an_answer_about_one_partition_goes_on_where_the_kernel_stopped(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    sink = _MeteredSink(tmp_path / "metered", room_bytes)
    sendfile = os.sendfile
    monkeypatch.setattr(
        os, "sendfile", lambda out, file, position, count: sendfile(out, file, position, sink.take_room(count))
    )
    part = _Slice(log, 100, 100_000)
    queue = OutgoingQueue()
    if not queue.send_at_once(cast(socket.socket, sink), [b"head", part, b"tail"]):
        assert room_bytes < 100_008
        assert not sink.is_corked
        _send_all(queue, sink)
    assert not sink.is_corked
    assert part.released
    assert not queue
    assert queue.sent_bytes == 100_008
    assert sink.path.read_bytes() == b"head" + log.read_bytes()[100:100_100] + b"tail"
    # The header waits for the slice, and nothing keeps the end back.
    assert sink.flags[0] == socket.MSG_MORE
    assert sink.flags[-1] == 0
    # What the first answer left behind must not be taken for part of the second.
    second = _Slice(log, 0, 50_000)
    assert queue.send_at_once(cast(socket.socket, sink), [b"", second, b"!"])
    assert sink.path.read_bytes()[100_008:] == log.read_bytes()[:50_000] + b"!"
    sink.close()


def test_an_answer_from_a_file_that_was_cut_is_told_by_the_next_send(sink: _Sink, log: Path) -> None:
    part = _Slice(log, log.stat().st_size, 100_000)
    part.is_recent = True
    queue = OutgoingQueue()
    assert not queue.send_at_once(cast(socket.socket, sink), [b"head", part, b"tail"])
    assert not sink.is_corked
    with pytest.raises(SliceCutShort):
        queue.send(cast(socket.socket, sink))


def test_what_was_not_sent_is_released_when_the_connection_goes(log: Path) -> None:
    parts = [_Slice(log, 0, 100_000), _Slice(log, 100_000, 100_000)]
    queue = OutgoingQueue()
    queue.add(parts)
    queue.drop()
    assert all(part.released for part in parts)
    assert not queue


def test_a_file_that_ends_too_early_is_noticed(sink: _Sink, log: Path) -> None:
    part = _Slice(log, 250_000, 100_000)
    queue = OutgoingQueue()
    queue.add([part])
    with pytest.raises(SliceCutShort):
        _send_all(queue, sink)
    queue.drop()
    assert part.released


def evict(path: Path) -> None:
    """Take a file out of memory, so that reading it needs the disk."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def test_small_slices_that_are_not_in_memory_are_not_read_at_once(sink: _Sink, log: Path) -> None:
    contents = log.read_bytes()
    evict(log)
    part = _Slice(log, 50_000, 1_000)
    queue = OutgoingQueue()
    queue.add([b"head", part, b"tail"])
    assert not part.released
    _send_all(queue, sink)
    assert part.released
    assert sink.path.read_bytes() == b"head" + contents[50_000:51_000] + b"tail"


def test_what_is_not_in_memory_is_not_waited_for(sink: _Sink, log: Path) -> None:
    """A thread brings it in, and sending goes on."""
    contents = log.read_bytes()
    evict(log)
    part = _Slice(log, 50_000, 100_000)
    queue = OutgoingQueue()
    queue.add([b"head", part, b"tail"])
    while not queue.is_cold:
        assert not queue.send(cast(socket.socket, sink))
    assert sink.path.read_bytes() == b"head"
    assert not part.released
    bring_in = queue.bring_in()
    queue.is_cold = False
    bring_in()
    while not queue.send(cast(socket.socket, sink)):
        assert not queue.is_cold
    assert part.released
    assert sink.path.read_bytes() == b"head" + contents[50_000:150_000] + b"tail"


def test_a_connection_that_ends_while_its_file_is_read_harms_nobody(log: Path, sink: _Sink) -> None:
    evict(log)
    queue = OutgoingQueue()
    queue.add([_Slice(log, 0, 100_000)])
    assert not queue.send(cast(socket.socket, sink))
    assert queue.is_cold
    bring_in = queue.bring_in()
    queue.drop()
    bring_in()


def test_a_hole_in_the_middle_is_noticed(log: Path, sink: _Sink) -> None:
    """Both ends of the slice are in memory."""
    evict(log)
    fd = os.open(log, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for position in (0, 199_999):
        os.pread(fd, 1, position)
    os.close(fd)
    queue = OutgoingQueue()
    queue.add([_Slice(log, 0, 200_000)])
    assert not queue.send(cast(socket.socket, sink))
    assert queue.is_cold
    queue.drop()


def test_recent_slices_are_not_asked_about(log: Path, sink: _Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise AssertionError("the kernel was asked")

    monkeypatch.setattr("tidelog.broker.outgoing.is_in_memory", fail)
    part = _Slice(log, 0, 200_000)
    part.is_recent = True
    queue = OutgoingQueue()
    queue.add([part])
    _send_all(queue, sink)
    assert part.released
