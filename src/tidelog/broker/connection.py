"""One client's connection: frames in, responses out, on a raw non-blocking socket.

What always holds: requests start, and responses leave, in the order in which the requests arrived. A produce may start
while earlier produces are unanswered, any other request only when all earlier ones are answered; nothing starts while a
response waits for the peer to read. Memory grows with the bytes received, never with the size a peer announces. When
the peer disconnects, its pending requests are cancelled. The dispatcher, not this module, knows what requests mean.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import select
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING

from tidelog.broker.dispatch import Dispatcher, Exchange, api_key_of
from tidelog.broker.memory import BUFFER_BYTES, HeldRequest, ReceiveMemory, is_unshared
from tidelog.broker.outgoing import OutgoingQueue, SliceCutShort
from tidelog.broker.registry import CloseConnection, find_handler
from tidelog.broker.request_context import ClientSession
from tidelog.broker.turns import SHORT_WORK_BYTES
from tidelog.protocol.messages.k00_produce import PRODUCE

if TYPE_CHECKING:
    from tidelog.broker.connection_set import ConnectionSet

# Of a client that does not wait for responses, this many requests are started; the rest stay in the socket.
IN_FLIGHT_MAX = 64

# How many requests of one connection are handled before other connections get their turn.
FRAMES_PER_TURN = 16
READS_PER_TURN = 4

# Well-formed small requests fit many into 16 frames; each large one may take the loop a tenth of a second.
BYTES_PER_TURN = 256 * 1024

# Only a produce carries records and may be as large as socket.request.max.bytes. The largest other requests list
# partitions or carry group members' metadata; a thousandth of this is typical.
OTHER_REQUEST_BYTES_MAX = 16 * 1024 * 1024

# How much is read of requests that wait behind an unfinished one, so that a disconnect is still noticed.
_BACKLOG_MAX_BYTES = 64 * 1024

_SMALL_BUFFER_BYTES = 4 * 1024
_GROWTH = 4
# From this size on, a full-size buffer is used, because those are pooled.
_MUCH_BYTES = 64 * 1024
_HEADER_MIN_BYTES = 8
_SIZE = struct.Struct(">i")


class Connection:
    """The broker's end of one connection."""

    __slots__ = (
        "__weakref__",
        "_answers",
        "_buffer",
        "_closed",
        "_continuing",
        "_counted_answer_bytes",
        "_dispatcher",
        "_draining",
        "_end",
        "_eof",
        "_exchanges",
        "_fd",
        "_frame_bytes",
        "_held_bytes",
        "_held_frame_bytes",
        "_loop",
        "_memory",
        "_outgoing",
        "_owner",
        "_reading",
        "_request_bytes_max",
        "_sock",
        "_start",
        "_writing",
        "idle_since_tick",
        "received_bytes",
        "session",
    )

    def __init__(
        self,
        sock: socket.socket,
        session: ClientSession,
        owner: ConnectionSet,
        dispatcher: Dispatcher,
        memory: ReceiveMemory,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.session = session
        self.idle_since_tick = owner.tick
        self.received_bytes = 0
        self._sock = sock
        self._fd = sock.fileno()
        self._owner = owner
        self._dispatcher = dispatcher
        self._memory = memory
        self._loop = loop
        self._request_bytes_max = owner.limits.request_bytes_max
        # The bytes between _start and _end of the buffer are received but not handled yet. _frame_bytes is the total
        # size of the frame they start with, or 0 until its size prefix has arrived.
        self._buffer: bytearray | None = None
        self._start = 0
        self._end = 0
        self._frame_bytes = 0
        self._held_bytes = 0
        # A request that is being decoded is no longer in the buffer, but its bytes still count.
        self._held_frame_bytes = 0
        self._answers = dispatcher.answers
        self._counted_answer_bytes = 0
        self._exchanges: deque[Exchange] = deque()
        self._outgoing = OutgoingQueue()
        self._reading = False
        self._writing = False
        self._continuing = False
        self._eof = False
        self._draining = False
        self._closed = False
        self._set_reading(True)

    @property
    def sent_bytes(self) -> int:
        return self._outgoing.sent_bytes

    @property
    def is_busy(self) -> bool:
        """Whether the peer is waiting for something."""
        return bool(self._exchanges or self._outgoing)

    @property
    def waits_for_answer(self) -> bool:
        """Whether it is our turn: a peer that does not read its response, or has closed its side, is itself idle."""
        return bool(self._exchanges) and not self._outgoing and not self._eof

    def drain(self) -> None:
        """Start no more requests; close once the pending responses are sent."""
        self._draining = True
        self._set_reading(False)
        if not self._outgoing and all(exchange.handler.may_be_cut for exchange in self._exchanges):
            self.close("the broker is shutting down")

    # Memory

    def memory_freed(self) -> None:
        self._update_reading()

    def hold_frame(self, size_bytes: int) -> None:
        self._held_frame_bytes = size_bytes
        self._memory.hold(self, size_bytes)

    def release_frame(self) -> None:
        if self._held_frame_bytes:
            size_bytes, self._held_frame_bytes = self._held_frame_bytes, 0
            self._memory.release(self, size_bytes)

    def hold_request(self, size_bytes: int) -> HeldRequest:
        return self._memory.hold_request(self, size_bytes)

    def lets_us_wait(self) -> bool:
        if self._outgoing:
            return self._writing and not _is_writable(self._fd)
        if self._exchanges:
            return False
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False  # whoever reads next finds it broken
        return False

    def _count_answers(self) -> None:
        """Report how much is waiting to be sent, if it is a lot; small responses are not worth counting."""
        waiting_bytes = self._outgoing.waiting_bytes
        counted_bytes = waiting_bytes if waiting_bytes > SHORT_WORK_BYTES else 0
        if counted_bytes != self._counted_answer_bytes:
            self._counted_answer_bytes = counted_bytes
            self._answers.update(self, counted_bytes)

    # Receiving

    def _on_readable(self) -> None:
        """Read and handle until there is nothing left, or a response shows that the connection is alive.

        uvloop reports a broken connection only once, together with the last bytes received. So unless a response was
        sent, we have to read once more after those bytes, or the connection of a dead client would stay open.
        """
        reads = handled_bytes = 0
        while reads < READS_PER_TURN and handled_bytes < BYTES_PER_TURN:
            if not self._make_room() or not self._receive():
                break
            filled = self._buffer is not None and self._end == len(self._buffer)
            sent_bytes = self._outgoing.sent_bytes
            handled_bytes += self._handle_frames()
            if self._closed or (not filled and self._outgoing.sent_bytes != sent_bytes):
                return
            reads += 1
        else:
            self._loop.call_soon(self._read_on)
        self._update_reading()

    def _read_on(self) -> None:
        if self._reading:
            self._on_readable()

    def _receive(self) -> bool:
        """Read once; False if there is nothing to handle."""
        buffer = self._buffer
        assert buffer is not None  # _make_room put it there
        try:
            if self._end == 0:
                received = self._sock.recv_into(buffer)
            else:
                received = self._sock.recv_into(memoryview(buffer)[self._end :])
        except (BlockingIOError, InterruptedError):
            self._settle()
            return False
        except OSError as error:
            self.close(f"lost the connection: {error.strerror}")
            return False
        if received == 0:
            self._on_eof()
            return False
        self._end += received
        self.received_bytes += received
        self.idle_since_tick = self._owner.tick
        return True

    def _on_eof(self) -> None:
        """The peer has stopped sending but may still read, so its requests are answered before we close."""
        self._eof = True
        self._set_reading(False)
        self._settle()
        is_over = not self.is_busy and not self._continuing
        if is_over or (self._exchanges and self._exchanges[-1].handler.is_ended_by_eof):
            self.close("closed by the peer")
            return
        try:
            self._owner.half_closed.watch(self._sock, self._on_gone)
        except OSError as error:
            self.close(f"lost the connection: {error.strerror}")  # it was reset in the meantime

    def _on_gone(self) -> None:
        self.close("lost the connection after the peer closed its side")

    def _make_room(self) -> int:
        """Make sure there is a buffer with room in it; 0 if there can't be one right now."""
        buffer = self._buffer
        if buffer is None:
            if not self._memory.may_begin(self):
                return 0
            # Small requests pass even when half-sent large ones hold all the memory; otherwise a few hundred slow or
            # hostile clients could lock everyone else out.
            is_scarce = self._memory.exhausted
            self._buffer = bytearray(_SMALL_BUFFER_BYTES) if is_scarce else self._memory.take_buffer()
            self._start = self._end = 0
            return len(self._buffer)
        room = len(buffer) - self._end
        if room:
            return room
        waiting_bytes = self._end - self._start
        capacity_bytes = self._capacity_for(waiting_bytes)
        if capacity_bytes <= waiting_bytes:
            return 0
        if self._start and capacity_bytes <= len(buffer) and is_unshared(buffer):
            buffer[:waiting_bytes] = buffer[self._start : self._end]
            self._start, self._end = 0, waiting_bytes
        else:
            extra_bytes = capacity_bytes - self._held_bytes
            if extra_bytes > 0 and not self._memory.try_hold(self, extra_bytes):
                return 0
            self._held_bytes += max(extra_bytes, 0)
            self._move(capacity_bytes)
        return capacity_bytes - waiting_bytes

    def _capacity_for(self, waiting_bytes: int) -> int:
        """How large a buffer may be for the waiting bytes: a multiple of them, until the whole frame fits."""
        wanted_bytes = self._frame_bytes if self._frame_bytes > waiting_bytes else _BACKLOG_MAX_BYTES
        capacity_bytes = max(waiting_bytes, min(wanted_bytes, max(waiting_bytes * _GROWTH, _SMALL_BUFFER_BYTES)))
        # What waits behind other requests doesn't justify a full-size buffer, all of whose bytes would count as held.
        is_backlog = self._frame_bytes <= waiting_bytes <= _BACKLOG_MAX_BYTES
        return BUFFER_BYTES if _MUCH_BYTES <= capacity_bytes <= BUFFER_BYTES and not is_backlog else capacity_bytes

    def _move(self, capacity_bytes: int) -> None:
        """Move the waiting bytes to the front of another buffer of this capacity."""
        old = self._buffer
        assert old is not None  # there is something to move
        buffer = self._memory.take_buffer() if capacity_bytes == BUFFER_BYTES else bytearray(capacity_bytes)
        waiting_bytes = self._end - self._start
        with memoryview(old) as view:
            buffer[:waiting_bytes] = view[self._start : self._end]
        self._memory.give_back(old)
        self._buffer, self._start, self._end = buffer, 0, waiting_bytes

    def _settle(self) -> None:
        """Return the buffer if nothing waits in it, or shrink it to suit what does."""
        buffer = self._buffer
        if buffer is None:
            return
        waiting_bytes = self._end - self._start
        if waiting_bytes == 0:
            self._drop_buffer()
        elif self._held_bytes == 0:
            # The buffer was borrowed for this turn only. A few bytes move out of it, so that a thousand connections
            # with half a request each take only a few bytes each; a large part of a request stays where it is.
            capacity_bytes = self._capacity_for(waiting_bytes)
            if capacity_bytes != BUFFER_BYTES or self._start + self._frame_bytes > len(buffer):
                self._move(capacity_bytes)
            self._held_bytes = capacity_bytes
            self._memory.hold(self, capacity_bytes)

    def _drop_buffer(self) -> None:
        if self._buffer is not None:
            self._memory.give_back(self._buffer)
            self._buffer = None
        self._start = self._end = self._frame_bytes = 0
        if self._held_bytes:
            held_bytes, self._held_bytes = self._held_bytes, 0
            self._memory.release(self, held_bytes)

    # Handling

    def _handle_frames(self) -> int:
        """Start every complete request that may start; the rest waits in the buffer. Returns the bytes started."""
        handled = handled_bytes = 0
        while self._end > self._start and not self._closed and not self._draining:
            size_bytes = self._next_frame()
            if size_bytes is None:
                break
            if not self._may_start():
                if self.session.on_next_request is not None:
                    self.session.on_next_request()
                break
            if handled == FRAMES_PER_TURN or handled_bytes >= BYTES_PER_TURN:
                self._continue_soon()
                break
            handled += 1
            handled_bytes += size_bytes
            assert self._buffer is not None  # a complete frame is in it
            body = self._start + 4
            self._start += 4 + size_bytes
            self._start_request(memoryview(self._buffer)[body : body + size_bytes])
        if not self._closed:
            self._settle()
        return handled_bytes

    def _next_frame(self) -> int | None:
        """The size of the waiting frame, or None if it is incomplete."""
        waiting_bytes = self._end - self._start
        self._frame_bytes = 0
        if waiting_bytes < 4:
            return None
        assert self._buffer is not None  # bytes wait in it
        size_bytes: int = _SIZE.unpack_from(self._buffer, self._start)[0]
        if not _HEADER_MIN_BYTES <= size_bytes <= self._request_bytes_max:
            self.close(
                f"announced a request of {size_bytes} bytes; the limit is {self._request_bytes_max}", logging.WARNING
            )
            return None
        if size_bytes > OTHER_REQUEST_BYTES_MAX and waiting_bytes >= 6:
            api_key = api_key_of(self._buffer, self._start + 4)
            if api_key != PRODUCE.key:
                self.close(
                    f"announced a request of {size_bytes} bytes for API key {api_key}; "
                    f"only a produce may have more than {OTHER_REQUEST_BYTES_MAX}",
                    logging.WARNING,
                )
                return None
        self._frame_bytes = 4 + size_bytes
        return size_bytes if waiting_bytes >= self._frame_bytes else None

    def _may_start(self) -> bool:
        if self._outgoing or self._continuing:
            return False
        exchanges = self._exchanges
        if not exchanges:
            return True
        last = exchanges[-1]
        if len(exchanges) >= IN_FLIGHT_MAX or not last.handler.may_overlap or last.is_in_steps:
            return False
        assert self._buffer is not None  # a complete frame is in it
        handler = find_handler(api_key_of(self._buffer, self._start + 4))
        return handler is not None and handler.may_overlap

    def _start_request(self, frame: memoryview) -> None:
        try:
            exchange = self._dispatcher.start(frame, self.session, self)
        except CloseConnection as reason:
            self.close(str(reason), logging.WARNING)
            return
        if exchange.future is not None:
            self._exchanges.append(exchange)
            exchange.future.add_done_callback(functools.partial(self._on_finished, exchange))
        elif self._exchanges:
            self._exchanges.append(exchange)
        elif exchange.parts is not None:
            self._send_answer(exchange)

    def _on_finished(self, exchange: Exchange, _future: asyncio.Future[object]) -> None:
        if self._closed:
            self._dispatcher.abandon(exchange)
            return
        try:
            self._dispatcher.finish(exchange)
        except CloseConnection as reason:
            self.close(str(reason), logging.WARNING)
            return
        if exchange.future is not None:
            exchange.future.add_done_callback(functools.partial(self._on_finished, exchange))
            self._go_on()
            return
        while self._exchanges and self._exchanges[0].answered:
            answered = self._exchanges.popleft()
            if answered.parts is not None:
                self._send_answer(answered)
                if self._closed:
                    return
        self._go_on()

    def _continue_soon(self) -> None:
        if not self._continuing:
            self._continuing = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._continuing = False
        if not self._closed:
            self._go_on()

    def _go_on(self) -> None:
        """After a response was sent: start what waited for it, and close if everything is done."""
        if self._end > self._start:
            self._handle_frames()
        if self._closed or self.is_busy or self._continuing:
            pass
        elif self._draining:
            self.close("the broker is shutting down")
            return
        elif self._eof:
            self.close("closed by the peer")
            return
        if not self._closed:
            self._update_reading()

    # Sending

    def _send_answer(self, exchange: Exchange) -> None:
        assert exchange.parts is not None  # the caller looked
        parts, exchange.parts = exchange.parts, None
        outgoing = self._outgoing
        try:
            if outgoing:
                outgoing.add(parts)
            elif not outgoing.send_at_once(self._sock, parts):
                self._send()
        except OSError as error:
            self.close(f"could not be sent its answer, as a log file can't be read: {error}", logging.ERROR)
            return
        if outgoing.waiting_bytes != self._counted_answer_bytes:
            self._count_answers()

    def _send(self) -> None:
        try:
            finished = self._outgoing.send(self._sock)
        except SliceCutShort as error:
            self.close(f"could not be sent the whole answer: {error}", logging.ERROR)
            return
        except OSError as error:
            self.close(f"lost the connection: {error.strerror}")
            return
        if self._outgoing.is_cold:
            self._bring_in()
            finished = True  # for the socket, which is not what this waits for
        if finished is self._writing:
            self._writing = not finished
            if finished:
                self._loop.remove_writer(self._fd)
            else:
                self._loop.add_writer(self._fd, self._on_writable)

    def _bring_in(self) -> None:
        """Have a thread read what comes next from the disk; nothing is sent until then."""
        self._outgoing.is_cold = False
        reading = self._loop.run_in_executor(self._owner.cold_reads, self._outgoing.bring_in())
        reading.add_done_callback(self._on_brought_in)

    def _on_brought_in(self, reading: asyncio.Future[None]) -> None:
        error = reading.exception()
        if self._closed:
            return
        if error is not None:
            self.close(f"could not be sent its answer, as a log file can't be read: {error}", logging.ERROR)
            return
        self._on_writable()

    def _on_writable(self) -> None:
        self.idle_since_tick = self._owner.tick
        self._send()
        if self._closed:
            return
        if self._outgoing.waiting_bytes != self._counted_answer_bytes:
            self._count_answers()
        if not self._outgoing:
            self._go_on()

    # Interest and end

    def _update_reading(self) -> None:
        """Read while there is room; reading is also how we notice that the peer disconnected."""
        if not self._closed:
            self._set_reading(not self._eof and not self._draining and self._has_room())

    def _has_room(self) -> bool:
        return self._memory.may_begin(self) if self._buffer is None else self._make_room() > 0

    def _set_reading(self, wanted: bool) -> None:
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._loop.add_reader(self._fd, self._on_readable)
            else:
                self._loop.remove_reader(self._fd)

    def close(self, reason: str, level: int = logging.DEBUG) -> None:
        """Close the connection now, and cancel whatever it was waiting for."""
        if self._closed:
            return
        self._closed = True
        self._set_reading(False)
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)
        if self._eof:
            self._owner.half_closed.forget(self._sock)
        self._sock.close()
        self._outgoing.drop()
        self._count_answers()
        self._drop_buffer()
        self.release_frame()
        self._memory.forget(self)
        for exchange in self._exchanges:
            if exchange.future is not None:
                exchange.future.cancel()
        self._exchanges.clear()
        self._owner.closed(self, reason, level)


def _is_writable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
