"""Receive buffers are never shared by two users, and the bound on held bytes neither leaks nor deadlocks."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.memory import BUFFER_BYTES, ReceiveMemory, is_unshared


class _Peer:
    def __init__(self) -> None:
        self.freed = 0

    def memory_freed(self) -> None:
        self.freed += 1


def _call_now(callback: Callable[[], None]) -> None:
    callback()


def _memory(bound_bytes: int) -> ReceiveMemory:
    return ReceiveMemory(bound_bytes, 1000, _call_now)


def test_a_buffer_is_used_again_once_nobody_looks_at_it() -> None:
    memory = _memory(-1)
    buffer = memory.take_buffer()
    memory.give_back(buffer)
    assert memory.take_buffer() is buffer


def test_a_buffer_with_a_view_left_is_never_handed_out() -> None:
    memory = _memory(-1)
    buffer = memory.take_buffer()
    view = memoryview(buffer)[10:20]
    memory.give_back(buffer)
    assert memory.take_buffer() is not buffer
    assert len(view) == 10


def test_whether_a_view_is_left_shows_without_changing_the_buffer() -> None:
    buffer = bytearray(b"abc")
    assert is_unshared(buffer)
    view = memoryview(buffer)
    assert not is_unshared(buffer)
    view.release()
    assert is_unshared(buffer)
    assert buffer == b"abc"


def test_only_buffers_of_the_common_size_are_kept_and_not_without_end() -> None:
    memory = _memory(-1)
    small = bytearray(10)
    memory.give_back(small)
    assert memory.take_buffer() is not small
    given = [bytearray(BUFFER_BYTES) for _ in range(12)]
    for buffer in given:
        memory.give_back(buffer)
    taken = [memory.take_buffer() for _ in range(12)]
    assert 0 < sum(any(buffer is other for other in given) for buffer in taken) < 12


def test_the_bound_holds_back_all_but_one() -> None:
    memory = _memory(100)
    first, second = _Peer(), _Peer()
    assert memory.try_hold(first, 60)
    assert memory.try_hold(first, 60), "one may go past the bound, so that half-received requests never deadlock"
    assert not memory.try_hold(second, 1)
    assert memory.exhausted
    memory.release(first, 120)
    assert second.freed == 1
    assert memory.held_bytes == 0
    assert memory.try_hold(second, 1)


def test_the_privilege_passes_on_when_its_holder_goes_away() -> None:
    memory = _memory(100)
    first, second = _Peer(), _Peer()
    assert memory.try_hold(first, 150)
    assert not memory.try_hold(second, 150)
    memory.release(first, 150)
    memory.forget(first)
    assert second.freed == 1
    assert memory.try_hold(second, 150)


def test_a_waiter_that_went_away_is_not_called() -> None:
    memory = _memory(100)
    first, second = _Peer(), _Peer()
    memory.hold(100)
    memory.wait(second)
    memory.forget(second)
    memory.release(first, 100)
    assert second.freed == 0


def test_without_a_bound_there_is_room_for_two_of_the_largest_requests() -> None:
    assert ReceiveMemory(-1, 1 << 30, _call_now).bound_bytes == 2 << 30
