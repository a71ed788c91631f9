"""Receive buffers are never shared by two users, and the bound on held bytes neither leaks nor deadlocks."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.memory import BUFFER_BYTES, AnswerMemory, ReceiveMemory, is_unshared


class _Peer:
    """A connection whose peer moves only when the test says so."""

    def __init__(self, *, lets_us_wait: bool = True) -> None:
        self.freed = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.closed_for = ""
        self._lets_us_wait = lets_us_wait
        self.on_close: Callable[[], None] = lambda: None

    def memory_freed(self) -> None:
        self.freed += 1

    def lets_us_wait(self) -> bool:
        return self._lets_us_wait

    def close(self, reason: str, level: int) -> None:
        self.closed_for = reason
        self.on_close()


class _Timers:
    """Calls at once what is due soon, and later what is due later, when the test says so."""

    def __init__(self) -> None:
        self._later: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self._later.append(callback)

    def pass_an_interval(self) -> None:
        due, self._later = self._later, []
        for callback in due:
            callback()


def _memory(bound_bytes: int, timers: _Timers | None = None) -> ReceiveMemory:
    return ReceiveMemory(bound_bytes, 1000, timers or _Timers())


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
    first, second, third = _Peer(), _Peer(), _Peer()
    memory.hold(first, 100)
    assert memory.exhausted
    assert memory.try_hold(second, 60), "one may go past the bound, so that half-received requests never deadlock"
    assert memory.try_hold(second, 60)
    assert not memory.try_hold(third, 1)
    memory.release(second, 120)
    assert third.freed == 1
    assert memory.held_bytes == 100
    assert memory.try_hold(third, 1)


def test_the_privilege_passes_on_when_its_holder_goes_away() -> None:
    memory = _memory(100)
    first, second = _Peer(), _Peer()
    assert memory.try_hold(first, 150)
    assert not memory.try_hold(second, 150)
    memory.release(first, 150)
    memory.forget(first)
    assert second.freed == 1
    assert memory.try_hold(second, 150)


def test_the_privilege_passes_on_before_its_holder_has_released_its_memory() -> None:
    memory = _memory(100)
    first, second = _Peer(), _Peer()
    assert memory.try_hold(first, 150)
    assert not memory.try_hold(second, 150)
    memory.forget(first)
    assert second.freed == 1
    assert memory.try_hold(second, 150)
    memory.release(first, 150)
    assert memory.held_bytes == 150


def test_the_request_past_the_bound_takes_no_room_from_others() -> None:
    memory = _memory(100)
    large, small = _Peer(), _Peer()
    assert memory.try_hold(large, 150)
    assert not memory.exhausted
    assert memory.try_hold(small, 10)


def test_no_connection_takes_more_than_half_of_what_is_free() -> None:
    """However many large requests come first, there is room for a smaller one."""
    memory = _memory(1000)
    large = [_Peer() for _ in range(20)]
    granted = [memory.try_hold(peer, 300) for peer in large]
    assert granted.count(True) == 3, "two of the shared memory, and one past the bound"
    assert memory.try_hold(_Peer(), 100)


def test_a_waiter_that_went_away_is_not_called() -> None:
    memory = _memory(100)
    first, second, third = _Peer(), _Peer(), _Peer()
    memory.hold(first, 100)
    assert memory.try_hold(second, 100)
    assert not memory.try_hold(third, 100)
    memory.forget(third)
    memory.release(first, 100)
    memory.release(second, 100)
    assert third.freed == 0


def test_without_a_bound_there_is_room_for_two_of_the_largest_requests() -> None:
    assert ReceiveMemory(-1, 1 << 30, _Timers()).bound_bytes == 2 << 30


class TestSlowHolders:
    """While others wait for memory, whoever holds it has to move."""

    BOUND = 100 << 20

    def _exhausted(self, timers: _Timers, *holders: _Peer) -> tuple[ReceiveMemory, _Peer]:
        """A memory that these hold all of, the last of them past the bound, and one that waits for some of it."""
        memory = _memory(self.BOUND, timers)
        *shared, privileged = holders
        for holder in shared:
            memory.hold(holder, self.BOUND // len(shared))
        assert memory.try_hold(privileged, self.BOUND)
        for holder in holders:

            def give_back(holder: _Peer = holder) -> None:
                memory.release(holder, memory._held.get(holder, 0))
                memory.forget(holder)

            holder.on_close = give_back
        waiter = _Peer()
        assert not memory.try_hold(waiter, 5000)
        return memory, waiter

    def test_those_that_do_not_move_are_closed_and_the_waiter_goes_on(self) -> None:
        timers = _Timers()
        holders = [_Peer() for _ in range(3)]
        memory, waiter = self._exhausted(timers, *holders)
        timers.pass_an_interval()
        assert any("too slow" in holder.closed_for for holder in holders)
        assert waiter.freed
        assert memory.try_hold(waiter, 5000)

    def test_a_byte_now_and_then_is_no_progress(self) -> None:
        timers = _Timers()
        holders = [_Peer(), _Peer()]
        _, waiter = self._exhausted(timers, *holders)
        for _ in range(5):
            for holder in holders:
                holder.received_bytes += 1
            timers.pass_an_interval()
        assert waiter.freed

    def test_those_that_move_are_left_alone(self) -> None:
        timers = _Timers()
        quick, slow = _Peer(), _Peer()
        _, waiter = self._exhausted(timers, quick, slow)
        for _ in range(5):
            quick.received_bytes += self.BOUND // 10
            timers.pass_an_interval()
        assert slow.closed_for
        assert not quick.closed_for
        assert waiter.freed

    def test_those_that_wait_for_us_are_left_alone(self) -> None:
        timers = _Timers()
        holders = [_Peer(lets_us_wait=False), _Peer(lets_us_wait=False)]
        self._exhausted(timers, *holders)
        for _ in range(5):
            timers.pass_an_interval()
        assert not any(holder.closed_for for holder in holders)

    def test_nobody_is_closed_while_nobody_waits(self) -> None:
        timers = _Timers()
        memory = _memory(self.BOUND, timers)
        holder = _Peer()
        memory.hold(holder, self.BOUND)
        for _ in range(5):
            timers.pass_an_interval()
        assert not holder.closed_for

    def test_the_slowest_go_first_and_no_more_than_are_needed(self) -> None:
        timers = _Timers()
        holders = [_Peer() for _ in range(9)]
        self._exhausted(timers, *holders)
        for number, holder in enumerate(holders):
            holder.received_bytes += number
        holders[-1].received_bytes += self.BOUND
        timers.pass_an_interval()
        closed = [number for number, holder in enumerate(holders) if holder.closed_for]
        assert 0 < len(closed) < len(holders) - 1
        assert closed == list(range(len(closed)))


class TestAnswers:
    def test_an_answer_grows_while_there_is_room_for_it(self) -> None:
        answers = AnswerMemory(100, _Timers())
        reader = _Peer()
        assert answers.has_room_for(1000), "one that is alone may be as large as it is"
        answers.update(reader, 60)
        assert answers.has_room_for(39)
        assert not answers.has_room_for(40)

    def test_whoever_waits_is_told_once_there_is_room(self) -> None:
        answers = AnswerMemory(100, _Timers())
        reader = _Peer()
        told: list[str] = []
        answers.update(reader, 90)
        answers.wait(50, lambda: told.append("room"))
        answers.update(reader, 60)
        assert not told
        answers.update(reader, 49)
        assert told == ["room"]
        answers.update(reader, 0)
        assert told == ["room"]
        assert answers.held_bytes == 0

    def test_those_that_do_not_read_are_closed(self) -> None:
        timers = _Timers()
        answers = AnswerMemory(100 << 20, timers)
        deaf, reading = _Peer(), _Peer()
        deaf.on_close = lambda: answers.update(deaf, 0)
        told: list[str] = []
        answers.update(deaf, 60 << 20)
        answers.update(reading, 40 << 20)
        answers.wait(1 << 20, lambda: told.append("room"))
        for _ in range(5):
            reading.sent_bytes += 4 << 20
            timers.pass_an_interval()
        assert "too slow" in deaf.closed_for
        assert not reading.closed_for
        assert told


class TestTakenUp:
    """Requests whose handlers still need their bytes, such as produces that wait for their check."""

    def test_they_count_until_they_are_released(self) -> None:
        memory = _memory(100)
        sender, other = _Peer(), _Peer()
        requests = [memory.hold_request(sender, 50) for _ in range(2)]
        assert memory.exhausted
        assert memory.try_hold(_Peer(), 20), "one may go past the bound"
        assert not memory.try_hold(other, 20)
        requests[0].release()
        requests[0].release()
        assert memory.held_bytes == 70
        assert other.freed == 1
        assert memory.try_hold(other, 20)

    def test_the_right_to_go_past_the_bound_is_for_one_request(self) -> None:
        """Else a connection that has it could send any number of requests, each while the one before is checked."""
        memory = _memory(100)
        sender = _Peer()
        assert memory.try_hold(sender, 150)
        request = memory.hold_request(sender, 150)
        memory.release(sender, 150)
        assert not memory.exhausted, "it takes no room from others"
        assert not memory.try_hold(sender, 150)
        request.release()
        assert sender.freed == 1
        assert memory.try_hold(sender, 150)

    def test_without_room_a_connection_that_has_some_under_way_begins_no_other(self) -> None:
        memory = _memory(100)
        sender, other = _Peer(), _Peer()
        request = memory.hold_request(sender, 100)
        assert not memory.may_begin(sender)
        assert memory.may_begin(other), "the first bytes of a small request always pass"
        request.release()
        assert sender.freed == 1
        assert memory.may_begin(sender)

    def test_they_outlive_their_connection_and_wake_the_others(self) -> None:
        memory = _memory(100)
        gone, waiting = _Peer(), _Peer()
        assert memory.try_hold(gone, 150)
        request = memory.hold_request(gone, 150)
        memory.release(gone, 150)
        assert not memory.try_hold(waiting, 150)
        memory.forget(gone)
        freed_before = waiting.freed
        request.release()
        assert (freed_before, waiting.freed) == (0, 1)
        assert memory.held_bytes == 0

    def test_they_are_never_too_slow(self) -> None:
        timers = _Timers()
        memory = _memory(100, timers)
        sender = _Peer()
        memory.hold_request(sender, 100)
        assert not memory.may_begin(sender)
        for _ in range(5):
            timers.pass_an_interval()
        assert not sender.closed_for
