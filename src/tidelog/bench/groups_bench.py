"""`tidelog bench groups`: consumer groups on one broker, Tidelog's and Apache Kafka's, in alternating runs.

What always holds: both sides get the same requests from the same members, which answer at once; nothing is timed before
every group's coordinator answers; each run begins with an empty data directory. Before joins or heartbeats are timed,
each side gets some thousand of them, and before commits are, some hundred thousand: a JVM needs that many to reach its
speed.
"""

from __future__ import annotations

import select
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.bench import comparison
from tidelog.bench.bare import BareConnection, check_accepted, frame
from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.comparison import Progress, Quantity, Samples, measure_new_brokers
from tidelog.bench.errors import MeasurementError, PlanError
from tidelog.bench.group_members import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_VERSION,
    Crowd,
    Member,
    State,
    raise_open_files_limit,
)
from tidelog.bench.processes import cpu_s_of, resident_bytes_of
from tidelog.bench.report import Row
from tidelog.client.admin import Admin, NewTopic
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k12_heartbeat import HEARTBEAT, HeartbeatRequest, HeartbeatResponse

GOAL: Final = 1.0
TOPIC: Final = "bench"
_LARGE_GROUP: Final = "large"
# Versions that both brokers serve.
_COMMIT_VERSION: Final = 8
_FIND_VERSION: Final = 3
_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.02
_FEW_COMMITTERS: Final = 20
ROWS: Final = ("heartbeats", "rebalances", "commits")
_WARM_UP_REBALANCES: Final = 10
_SPARE_FILES: Final = 2_000
# Of the heartbeats that were due: with fewer, another load was measured than the one that is named.
_ANSWERED_LEAST: Final = 0.95


@dataclass(frozen=True)
class Plan(comparison.Plan):
    """How much is measured. A run of both brokers takes about three minutes on two cores."""

    runs: int = 2
    groups: int = 500
    members: int = 2_000
    seconds: float = 20.0
    high_rate: int = 4_000
    group_size: int = 200
    rebalances: int = 10
    commits: int = 3_000
    # Of 20 groups at once: after so many, the commits per second of a JVM no longer rise.
    warm_up_commits: int = 300_000

    @classmethod
    def known_rows(cls) -> Sequence[str]:
        return ROWS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members < self.groups:
            raise PlanError(f"{self.groups} groups need at least as many members, not {self.members}")

    @property
    def usual_rate(self) -> float:
        """Heartbeats a second of this many members with clients' default interval."""
        return self.members / HEARTBEAT_INTERVAL_S


def quantities(plan: Plan) -> list[Quantity]:
    """The rows of the table."""
    usual, high = f"heartbeats, {plan.usual_rate:,.0f} a second,", f"heartbeats, {plan.high_rate:,} a second,"
    one_more = f"one more member in a group of {plan.group_size}, until all have synced,"
    several = f"commit offsets, {_FEW_COMMITTERS} groups at once"
    form = f"{plan.groups} groups with {plan.members:,} members, until all have synced"
    by_row = {
        "heartbeats": [
            Quantity("form", form, "s", GOAL),
            Quantity("memory when formed", "memory then", "MB"),
            Quantity("usual p50", f"{usual} p50", "ms"),
            Quantity("usual p99", f"{usual} p99", "ms", GOAL),
            Quantity("usual CPU", f"{usual} broker CPU", "% of a core"),
            Quantity("high p50", f"{high} p50", "ms"),
            Quantity("high p99", f"{high} p99", "ms", GOAL),
            Quantity("high CPU", f"{high} broker CPU", "% of a core"),
            Quantity("memory after heartbeats", "memory then", "MB"),
        ],
        "rebalances": [
            Quantity("rebalance", f"{one_more} median of {plan.rebalances}", "ms", GOAL),
            Quantity("slowest rebalance", f"{one_more} the slowest", "ms"),
        ],
        "commits": [
            Quantity("commit p50", "commit an offset, one after the other, p50", "us", GOAL),
            Quantity("commit p99", "commit an offset, one after the other, p99", "us"),
            Quantity("commits/s", several, "commits/s", GOAL, higher_is_better=True),
            Quantity("commit CPU", several, "broker CPU us/commit"),
        ],
    }
    return [quantity for name in plan.chosen for quantity in by_row[name]]


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[Row]:
    """Measure both brokers; rows in the order of the docs' table."""
    raise_open_files_limit(plan.members + plan.group_size + _SPARE_FILES)

    def measure(broker: BrokerProcess, samples: Samples) -> None:
        _measure(broker, plan, samples, progress)

    return comparison.rows(quantities(plan), *measure_new_brokers(plan.runs, directory, progress, measure))


def _measure(broker: BrokerProcess, plan: Plan, samples: Samples, progress: Progress) -> None:
    groups = [f"group-{number}" for number in range(plan.groups)]
    committers = [f"committer-{number}" for number in range(_FEW_COMMITTERS)]
    broker.start()
    _create_topic(broker)
    _wait_for_coordinators(broker, [*groups, *committers, _LARGE_GROUP])
    if plan.chosen != ["commits"]:
        progress(f"  rebalance a group of {plan.group_size}")
        _rebalances(broker, plan, samples)
    if "heartbeats" in plan.chosen:
        # The joins and syncs of the large group have warmed up what many small ones need.
        _many_groups(broker, plan, groups, samples, progress)
    if "commits" in plan.chosen:
        _commits(broker, plan, committers, samples, progress)


# Before the clock runs


def _create_topic(broker: BrokerProcess) -> None:
    """The topic that members subscribe to: offsets of topics that there are not are refused."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, 1, 1)]).raise_for_errors()
        admin.wait_for_topics(TOPIC)


def _wait_for_coordinators(broker: BrokerProcess, groups: Sequence[str]) -> None:
    """The first question makes __consumer_offsets; a group whose coordinator is ready knows no such member."""
    deadline_s = time.monotonic() + _DEADLINE_S
    with closing(BareConnection(broker.port)) as connection:
        while True:
            connection.sock.sendall(frame(FIND_COORDINATOR, FindCoordinatorRequest(key=groups[0]), _FIND_VERSION))
            if not connection.receive(FIND_COORDINATOR, FindCoordinatorResponse, _FIND_VERSION).error_code:
                break
            _wait(deadline_s, f"{broker.name} names no coordinator")
        for group in groups:
            request = HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")
            while True:
                connection.sock.sendall(frame(HEARTBEAT, request, HEARTBEAT_VERSION))
                answer = connection.receive(HEARTBEAT, HeartbeatResponse, HEARTBEAT_VERSION)
                if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                    break
                _wait(deadline_s, f"{broker.name} has no coordinator for {group}: {ErrorCode(answer.error_code).name}")


def _wait(deadline_s: float, what: str) -> None:
    if time.monotonic() > deadline_s:
        raise MeasurementError(what)
    time.sleep(_POLL_S)


# Many groups


def _many_groups(
    broker: BrokerProcess, plan: Plan, groups: Sequence[str], samples: Samples, progress: Progress
) -> None:
    with closing(Crowd(broker.port)) as crowd:
        progress(f"  {plan.groups} groups with {plan.members} members")
        crowd.add(groups[number % plan.groups] for number in range(plan.members))
        with samples.clock("form"):
            for member in crowd.members:
                member.join()
                crowd.receive(0)
            crowd.run(crowd.all_stable, "all members have their parts", _DEADLINE_S)
        samples.add("memory when formed", _resident_mb(broker))
        progress(f"  {plan.high_rate} heartbeats a second, to warm up")
        _beat(broker, crowd, plan.high_rate, plan.seconds / 2)
        progress(f"  {plan.usual_rate:.0f} heartbeats a second")
        usual_s, cpu_percent = _timed_beats(broker, crowd, plan.usual_rate, plan.seconds)
        samples.add("usual p50", statistics.median(usual_s) * 1000)
        samples.add("usual p99", _p99(usual_s) * 1000)
        samples.add("usual CPU", cpu_percent)
        progress(f"  {plan.high_rate} heartbeats a second")
        high_s, cpu_percent = _timed_beats(broker, crowd, plan.high_rate, plan.seconds)
        samples.add("high p50", statistics.median(high_s) * 1000)
        samples.add("high p99", _p99(high_s) * 1000)
        samples.add("high CPU", cpu_percent)
        samples.add("memory after heartbeats", _resident_mb(broker))


def _beat(broker: BrokerProcess, crowd: Crowd, rate: float, seconds: float) -> tuple[list[float], float]:
    """Send heartbeats for a while: how long each took, in seconds, and the broker's CPU in % of a core."""
    crowd.beats_s.clear()
    cpu_before_s, began_s = cpu_s_of(broker.pid), time.perf_counter()
    crowd.run(lambda: time.perf_counter() - began_s >= seconds, "nothing", seconds + _DEADLINE_S, beats_per_s=rate)
    elapsed_s = time.perf_counter() - began_s
    cpu_s = cpu_s_of(broker.pid) - cpu_before_s
    if not crowd.all_stable():
        raise MeasurementError(f"{broker.name} began a rebalance that nobody asked for")
    return list(crowd.beats_s), 100 * cpu_s / elapsed_s


def _timed_beats(broker: BrokerProcess, crowd: Crowd, rate: float, seconds: float) -> tuple[list[float], float]:
    """The same, where it matters that as many were sent as were due."""
    beats_s, cpu_percent = _beat(broker, crowd, rate, seconds)
    if len(beats_s) < _ANSWERED_LEAST * rate * seconds:
        raise MeasurementError(
            f"{broker.name} answered {len(beats_s)} heartbeats in {seconds:g} s where {rate * seconds:.0f} were due: "
            "it can't keep up, or this machine is too busy to measure"
        )
    return beats_s, cpu_percent


# One large group


def _rebalances(broker: BrokerProcess, plan: Plan, samples: Samples) -> None:
    with closing(Crowd(broker.port)) as crowd:
        for member in crowd.add([_LARGE_GROUP] * plan.group_size):
            member.join()
        crowd.run(lambda: _is_one_generation(crowd), "the large group is formed", _DEADLINE_S)
        times_ms = []
        for number in range(_WARM_UP_REBALANCES + plan.rebalances):
            (newcomer,) = crowd.add([_LARGE_GROUP])
            began_s = time.perf_counter()
            newcomer.join()
            _rebalance(crowd)
            if number >= _WARM_UP_REBALANCES:
                times_ms.append((time.perf_counter() - began_s) * 1000)
            _leave(crowd, newcomer)
            _rebalance(crowd)
        samples.add("rebalance", statistics.median(times_ms))
        samples.add("slowest rebalance", max(times_ms))


def _leave(crowd: Crowd, member: Member) -> None:
    member.leave()
    crowd.run(lambda: member.state is State.GONE, "a member leaves", _DEADLINE_S)
    crowd.remove(member)


def _rebalance(crowd: Crowd) -> None:
    """Let all members ask at once whether they must join again, until they are one generation more."""
    generation_id = max(member.generation_id for member in crowd.members)
    deadline_s = time.monotonic() + _DEADLINE_S
    while not _is_one_generation(crowd, generation_id + 1):
        if time.monotonic() > deadline_s:
            raise MeasurementError("a rebalance did not end")
        for member in crowd.members:
            if (
                member.state is State.STABLE
                and member.beat_at_s is None
                and member.generation_id == generation_id
                and _everybody_else_has_an_id(crowd)
            ):
                member.beat()
        crowd.receive(_POLL_S)


def _everybody_else_has_an_id(crowd: Crowd) -> bool:
    """Whether the newcomer has got its id: its join, which the others are to hear of, has gone out."""
    return bool(crowd.members[-1].member_id)


def _is_one_generation(crowd: Crowd, least: int = 0) -> bool:
    generations = {member.generation_id for member in crowd.members}
    return crowd.all_stable() and len(generations) == 1 and min(generations) >= least


# Commits


def _commits(broker: BrokerProcess, plan: Plan, groups: Sequence[str], samples: Samples, progress: Progress) -> None:
    progress(f"  {plan.warm_up_commits:,} commits, to warm up")
    _commit_at_once(broker, groups, lambda count: count >= plan.warm_up_commits)
    progress("  commit offsets")
    with closing(BareConnection(broker.port)) as connection:
        request = _commit_frame(groups[0])
        times_us = []
        for _ in range(plan.commits):
            began_ns = time.perf_counter_ns()
            connection.sock.sendall(request)
            answer = connection.receive(OFFSET_COMMIT, OffsetCommitResponse, _COMMIT_VERSION)
            times_us.append((time.perf_counter_ns() - began_ns) / 1000)
            _check_commit(broker, answer)
    samples.add("commit p50", statistics.median(times_us))
    samples.add("commit p99", _p99(times_us))
    cpu_before_s, began_s = cpu_s_of(broker.pid), time.perf_counter()
    ends_s = began_s + plan.seconds / 2
    count = _commit_at_once(broker, groups, lambda _: time.perf_counter() >= ends_s)
    samples.add("commits/s", count / (time.perf_counter() - began_s))
    samples.add("commit CPU", (cpu_s_of(broker.pid) - cpu_before_s) / count * 1e6)


def _commit_at_once(broker: BrokerProcess, groups: Sequence[str], is_over: Callable[[int], bool]) -> int:
    """Every group has a connection and commits again as soon as it is answered; gives the number of commits."""
    requests = [_commit_frame(group) for group in groups]
    count = 0
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(BareConnection(broker.port))) for _ in groups]
        by_descriptor = {connection.sock.fileno(): index for index, connection in enumerate(connections)}
        poll = stack.enter_context(closing(select.epoll()))
        for connection, request in zip(connections, requests, strict=True):
            poll.register(connection.sock.fileno(), select.EPOLLIN)
            connection.sock.sendall(request)
        while not is_over(count):
            for descriptor, _ in poll.poll(_DEADLINE_S):
                index = by_descriptor[descriptor]
                answer = connections[index].receive(OFFSET_COMMIT, OffsetCommitResponse, _COMMIT_VERSION)
                _check_commit(broker, answer)
                connections[index].sock.sendall(requests[index])
                count += 1
    return count


def _commit_frame(group: str) -> bytes:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    return frame(OFFSET_COMMIT, OffsetCommitRequest(group_id=group, topics=[topic]), _COMMIT_VERSION)


def _check_commit(broker: BrokerProcess, answer: OffsetCommitResponse) -> None:
    check_accepted(broker, answer.topics[0].partitions[0].error_code)


# Figures


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _resident_mb(broker: BrokerProcess) -> float:
    return resident_bytes_of(broker.pid) / 1e6
