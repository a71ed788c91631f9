"""Thousands of members of classic groups in one process: each has its own connection, all share one epoll.

What always holds: a member does what clients do and at once: it joins, leads if it is told to, asks for its part, sends
heartbeats, and joins again when a heartbeat says so. Heartbeats are sent when they are due, whether or not earlier ones
of other members were answered, so that a slow broker is not asked less. Any answer that a healthy group does not get
ends the measurement.
"""

from __future__ import annotations

import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Final, TypeVar

from tidelog.bench.bare import frame
from tidelog.bench.errors import MeasurementError
from tidelog.protocol import Api, ErrorCode, decode, decode_response_header
from tidelog.protocol.messages.k11_join_group import (
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tidelog.protocol.messages.k12_heartbeat import HEARTBEAT, HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.k13_leave_group import (
    LEAVE_GROUP,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from tidelog.protocol.messages.k14_sync_group import (
    SYNC_GROUP,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

ResponseT = TypeVar("ResponseT")

# Versions that both brokers serve.
HEARTBEAT_VERSION: Final = 4
_JOIN_VERSION: Final = 9
_LEAVE_VERSION: Final = 5
_SYNC_VERSION: Final = 5

HEARTBEAT_INTERVAL_S: Final = 3.0
"""The default heartbeat.interval.ms of clients."""

_SESSION_MS: Final = 45_000
_REBALANCE_MS: Final = 300_000
# What a consumer of one topic says of itself, and what it is given, in version 0: some thirty bytes, as in real groups.
_SUBSCRIPTION: Final = b"\x00\x00\x00\x00\x00\x01\x00\x05bench\xff\xff\xff\xff"
_ASSIGNMENT: Final = b"\x00\x00\x00\x00\x00\x01\x00\x05bench\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff"
_CONNECT_TIMEOUT_S: Final = 30.0
_RECEIVE_BYTES: Final = 1 << 16


class State(Enum):
    """What a member is waiting for."""

    NEW = auto()
    JOINING = auto()
    SYNCING = auto()
    STABLE = auto()
    LEAVING = auto()
    GONE = auto()


class Member:
    """One member and its connection."""

    def __init__(self, port: int, group: str) -> None:
        self.group = group
        self.member_id = ""
        self.generation_id = -1
        self.state = State.NEW
        # When the heartbeat that is not answered yet was sent.
        self.beat_at_s: float | None = None
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._heartbeat = b""

    def join(self) -> None:
        self.state = State.JOINING
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=_SUBSCRIPTION)],
        )
        self.sock.sendall(frame(JOIN_GROUP, request, _JOIN_VERSION))

    def leave(self) -> None:
        self.state = State.LEAVING
        identity = MemberIdentity(member_id=self.member_id)
        request = LeaveGroupRequest(group_id=self.group, members=[identity])
        self.sock.sendall(frame(LEAVE_GROUP, request, _LEAVE_VERSION))

    def beat(self) -> None:
        self.beat_at_s = time.perf_counter()
        self.sock.sendall(self._heartbeat)

    def receive(self) -> list[bytes]:
        """The answers that have arrived, without their sizes."""
        part = self.sock.recv(_RECEIVE_BYTES)
        if not part:
            raise MeasurementError(f"the broker closed the connection of a member of {self.group}")
        received = self._received + part if self._received else part
        answers = []
        position = 0
        while len(received) - position >= 4:
            end = position + 4 + struct.unpack_from(">i", received, position)[0]
            if end > len(received):
                break
            answers.append(received[position + 4 : end])
            position = end
        self._received = received[position:]
        return answers

    def on_answer(self, data: bytes) -> None:
        """Take the answer to whatever the member asked, and do what follows from it."""
        if self.beat_at_s is not None:
            self.beat_at_s = None
            self._on_heartbeat(_decode(HEARTBEAT, HeartbeatResponse, HEARTBEAT_VERSION, data))
        elif self.state is State.JOINING:
            self._on_joined(_decode(JOIN_GROUP, JoinGroupResponse, _JOIN_VERSION, data))
        elif self.state is State.SYNCING:
            self._on_synced(_decode(SYNC_GROUP, SyncGroupResponse, _SYNC_VERSION, data))
        elif self.state is State.LEAVING:
            self._check(_decode(LEAVE_GROUP, LeaveGroupResponse, _LEAVE_VERSION, data).error_code)
            self.state = State.GONE
        else:
            raise MeasurementError(f"an answer that a member of {self.group} did not ask for")

    def _on_heartbeat(self, answer: HeartbeatResponse) -> None:
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
        else:
            self._check(answer.error_code)

    def _on_joined(self, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.join()
            return
        self._check(answer.error_code)
        self.member_id, self.generation_id = answer.member_id, answer.generation_id
        self.state = State.SYNCING
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation_id,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name=answer.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member.member_id, assignment=_ASSIGNMENT)
                for member in answer.members
            ],
        )
        self.sock.sendall(frame(SYNC_GROUP, request, _SYNC_VERSION))

    def _on_synced(self, answer: SyncGroupResponse) -> None:
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            return
        self._check(answer.error_code)
        self.state = State.STABLE
        request = HeartbeatRequest(group_id=self.group, generation_id=self.generation_id, member_id=self.member_id)
        self._heartbeat = frame(HEARTBEAT, request, HEARTBEAT_VERSION)

    def _check(self, code: int) -> None:
        if code != ErrorCode.NONE:
            raise MeasurementError(f"a member of {self.group} that was {self.state.name} got {ErrorCode(code).name}")


def _decode(api: Api, response: type[ResponseT], version: int, data: bytes) -> ResponseT:
    _, position = decode_response_header(api, version, data)
    return decode(response, data, version, position)


class Crowd:
    """Members of any number of groups, and the times that their heartbeats took."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._epoll = select.epoll()
        self._by_descriptor: dict[int, Member] = {}
        self._turn = 0
        self.members: list[Member] = []
        self.beats_s: list[float] = []

    def add(self, groups: Iterable[str]) -> list[Member]:
        """Connect a member of each of these groups; they have not joined yet."""
        added = []
        for group in groups:
            member = Member(self._port, group)
            self.members.append(member)
            self._by_descriptor[member.sock.fileno()] = member
            self._epoll.register(member.sock.fileno(), select.EPOLLIN)
            added.append(member)
        return added

    def remove(self, member: Member) -> None:
        """Forget a member that left."""
        self.members.remove(member)
        del self._by_descriptor[member.sock.fileno()]
        self._epoll.unregister(member.sock.fileno())
        member.sock.close()

    def close(self) -> None:
        for member in self.members:
            member.sock.close()
        self._epoll.close()

    def all_stable(self) -> bool:
        return all(member.state is State.STABLE for member in self.members)

    def run(self, until: Callable[[], bool], what: str, deadline_s: float, beats_per_s: float | None = None) -> None:
        """Serve the members until a condition holds; each sends a heartbeat every few seconds."""
        rate = len(self.members) / HEARTBEAT_INTERVAL_S if beats_per_s is None else beats_per_s
        began_s = time.perf_counter()
        turns = 0
        while not until():
            elapsed_s = time.perf_counter() - began_s
            if elapsed_s > deadline_s:
                raise MeasurementError(f"gave up after {deadline_s:.0f} s: {what}")
            while turns < elapsed_s * rate:
                turns += 1
                self._beat_next()
            next_s = began_s + turns / rate if rate else began_s + deadline_s
            self.receive(max(0.0, min(next_s, began_s + deadline_s) - time.perf_counter()))

    def receive(self, wait_s: float) -> None:
        """Handle what has arrived, or wait for something to arrive."""
        for descriptor, _ in self._epoll.poll(wait_s):
            member = self._by_descriptor[descriptor]
            answers = member.receive()
            if answers and member.beat_at_s is not None:
                self.beats_s.append(time.perf_counter() - member.beat_at_s)
            for answer in answers:
                member.on_answer(answer)

    def _beat_next(self) -> None:
        """Let the next member send a heartbeat; one that still waits for an answer sends none, as clients do."""
        self._turn = (self._turn + 1) % len(self.members)
        member = self.members[self._turn]
        if member.state is State.STABLE and member.beat_at_s is None:
            member.beat()


def raise_open_files_limit(wanted: int) -> None:
    """Raise the limit of open files for this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise MeasurementError(f"{wanted} open files are needed and {hard} are allowed: raise ulimit -Hn")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
