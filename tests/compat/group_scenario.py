"""Runs consumers of several families in one group, disturbs them, and keeps a record of who owned what and when.

What must hold at the end: every record was read by somebody; no partition was owned by two members at one time; and a
record was read twice only where one of the readers was killed or stopped, before it could commit. Where brokers die,
commits fail of members that are in good health, and any record may be read twice.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from group_members.report import HEARTBEAT_INTERVAL_MS, Options

TOPIC = "t"
DEADLINE_S = 30.0
SESSION_MS = 3_000
PROGRAMS = {
    "confluent": "confluent_member",
    "aiokafka": "aiokafka_member",
    "kafka-python": "kafka_python_member",
    "tidelog": "tidelog_member",
}

JAVA_PROGRAM = "io.tidelog.compat.GroupMember"

STUCK_S = 120.0
"""A group of which nobody reads anything for this long is stuck, however busy the machine is."""

KCAT_LAG_S = 0.3
"""kcat does not tell when it gave something up; the time is that at which its line was read here, a little later."""

# Eager and cooperative members are told of in different words.
_KCAT_GIVEN = re.compile(r"% Group \S+ rebalanced.*\b(assigned|incremental assignment)\b")
_KCAT_TAKEN = re.compile(r"% Group \S+ rebalanced.*\b(revoked|incremental revoke)\b")


class Interval(NamedTuple):
    """A time in which a member owned a partition."""

    began_s: float
    ended_s: float
    member: str
    lag_s: float


@dataclass
class Member:
    """One process, and what it said."""

    name: str
    process: subprocess.Popen[str]
    lag_s: float = 0.0
    # Partitions it owns, with the time since when.
    owned: dict[int, float] = field(default_factory=dict)
    is_disturbed: bool = False
    is_stopped: bool = False
    assignments: int = 0
    records_read: int = 0
    threads: list[threading.Thread] = field(default_factory=list)


class GroupScenario:
    """The group; to be used as a context, at whose end no process is left."""

    def __init__(
        self,
        bootstrap: str,
        partitions: int,
        logs: Path,
        *,
        java_jars: Path | None = None,
        session_ms: int = SESSION_MS,
    ) -> None:
        self._bootstrap = bootstrap
        self._session_ms = session_ms
        self._java_jars = java_jars
        self._partitions = partitions
        self._logs = logs
        self._members: dict[str, Member] = {}
        self._intervals: dict[int, list[Interval]] = defaultdict(list)
        self._readers: dict[tuple[int, int], list[Member]] = defaultdict(list)
        self._changed = threading.Condition()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._producing = threading.Event()
        self._producing_thread = threading.Thread(target=self._produce, name="producing")

    def __enter__(self) -> Self:
        self._producing.set()
        self._producing_thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_producing()
        for member in self._members.values():
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()
            for thread in member.threads:
                thread.join()

    # Members

    def start(
        self,
        name: str,
        family: str,
        assignor: str = "range",
        instance: str | None = None,
        group: str = "mixed",
        protocol: str = "classic",
    ) -> None:
        """Start a member; the families are those of PROGRAMS, kcat, and java where its jars were given."""
        options = Options(self._bootstrap, group, TOPIC, assignor, self._session_ms, instance, protocol)
        is_kcat = family == "kcat"
        if is_kcat:
            command = _kcat(options)
        elif family == "java":
            command = ["java", "-Xmx128m", "-cp", f"{self._java_jars}/*", JAVA_PROGRAM, json.dumps(asdict(options))]
        else:
            command = [sys.executable, "-m", f"group_members.{PROGRAMS[family]}", json.dumps(asdict(options))]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
        with (self._logs / f"{name}.log").open("ab") as log:
            errors = subprocess.PIPE if is_kcat else log
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        member = Member(name, process, KCAT_LAG_S if is_kcat else 0.0)
        with self._changed:
            self._members[name] = member
        if is_kcat:
            self._follow(member, process.stdout, self._on_kcat_record)
            self._follow(member, process.stderr, self._on_kcat_line)
        else:
            self._follow(member, process.stdout, self._on_line)

    def kill(self, name: str) -> None:
        """kill -9: what it owned is free from now on."""
        member = self._members[name]
        member.is_disturbed = True
        member.process.kill()
        member.process.wait()
        self._free(member, time.monotonic())

    def stop(self, name: str) -> None:
        """Have it stand still; it does nothing with what it owns any more."""
        member = self._members[name]
        member.is_disturbed = member.is_stopped = True
        member.process.send_signal(signal.SIGSTOP)
        self._free(member, time.monotonic())

    def resume(self, name: str) -> None:
        """Let it go on; what it believes to own is not counted until it is given something anew."""
        self._members[name].process.send_signal(signal.SIGCONT)

    def leave(self, name: str) -> None:
        """Ask it to leave, and wait until it is gone."""
        member = self._members[name]
        member.process.terminate()
        member.process.wait(DEADLINE_S)
        for thread in member.threads:
            thread.join()
        self._free(member, time.monotonic())

    def grow(self, partitions: int) -> None:
        """Give the topic more partitions."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        for future in admin.create_partitions([NewPartitions(TOPIC, partitions)]).values():
            future.result(DEADLINE_S)
        # The producer must know them before it can write to them.
        assert len(self._producer.list_topics(TOPIC, DEADLINE_S).topics[TOPIC].partitions) == partitions
        self._partitions = partitions

    def assignments(self, name: str) -> int:
        """How often it was given something."""
        return self._members[name].assignments

    def ownership(self) -> dict[int, str]:
        """Who owns which partition just now."""
        with self._changed:
            return {partition: member.name for member in self._members.values() for partition in member.owned}

    # Waiting

    def wait_for_owners(self, *names: str) -> None:
        """Wait until these members, each with its part, own all partitions."""

        def shared_out() -> bool:
            owners = {name: self._members[name].owned for name in names}
            partitions = [partition for owned in owners.values() for partition in owned]
            return all(owners.values()) and sorted(partitions) == list(range(self._partitions))

        self.wait(shared_out, lambda: f"not shared out among {names}: {self.ownership()}")

    def wait_for_reads(self, more: int) -> None:
        """Wait until each member has read this many records more; gives up when none of them reads any for long."""
        members = self._members.values()
        goals = {member.name: member.records_read + more for member in members}

        def counts() -> dict[str, int]:
            return {member.name: member.records_read for member in members}

        with self._changed:
            while any(member.records_read < goals[member.name] for member in members):
                before = counts()
                moved = self._changed.wait_for(partial(_differ, counts, before), STUCK_S)
                assert moved, f"no more is read: {before}, wanted {goals}; {self.ownership()}"

    def owned(self, name: str) -> set[int]:
        """What a member owns just now."""
        return set(self._members[name].owned)

    def wait_until_read(self) -> None:
        """Stop producing and wait until everything was read."""
        self._stop_producing()
        produced = {
            (partition, offset)
            for partition in range(self._partitions)
            for offset in range(self._high_watermark(partition))
        }
        assert produced, "nothing was produced"
        self.wait(
            lambda: produced <= self._readers.keys(),
            lambda: f"of {len(produced)} records were never read: {self._lost(produced - self._readers.keys())}",
        )

    def _lost(self, records: set[tuple[int, int]]) -> list[str]:
        """The first of these records, with those who read the ones before and after them."""
        return [
            f"{partition}:{offset} between {[member.name for member in self._readers[partition, offset - 1]]} and "
            f"{[member.name for member in self._readers[partition, offset + 1]]}"
            for partition, offset in sorted(records)[:10]
        ]

    # What must hold

    def check(self, *, brokers_died: bool = False) -> None:
        now_s = time.monotonic()
        for member in self._members.values():
            self._free(member, now_s)
        for partition, intervals in self._intervals.items():
            intervals.sort()
            for one, other in pairwise(intervals):
                allowed_s = max(one.lag_s, other.lag_s)
                assert one.ended_s <= other.began_s + allowed_s, f"partition {partition} had two owners: {one}, {other}"
        for record, readers in self._readers.items():
            if len(readers) > 1 and not brokers_died:
                names = [member.name for member in readers]
                assert any(member.is_disturbed for member in readers), f"{record} was read by {names}"

    # What members say

    def _follow(self, member: Member, lines: Any, handle: Callable[[Member, str], None]) -> None:
        def follow() -> None:
            with lines:
                for line in lines:
                    if not line.endswith("\n"):
                        break  # it was killed in the middle of it
                    with self._changed:
                        handle(member, line)
                        self._changed.notify_all()

        thread = threading.Thread(target=follow, name=f"lines of {member.name}")
        thread.start()
        member.threads.append(thread)

    def _on_line(self, member: Member, line: str) -> None:
        told = json.loads(line)
        if told["event"] == "read":
            member.records_read += len(told["records"])
            for partition, offset in told["records"]:
                self._readers[partition, offset].append(member)
        elif told["event"] == "assigned":
            self._own(member, told["partitions"], told["at"])
        elif told["event"] == "revoked":
            self._give_up(member, told["partitions"], told["at"])

    def _on_kcat_record(self, member: Member, line: str) -> None:
        partition, offset = line.split()
        member.records_read += 1
        self._readers[int(partition), int(offset)].append(member)

    def _on_kcat_line(self, member: Member, line: str) -> None:
        partitions = [int(number) for number in re.findall(rf"\b{TOPIC} \[(\d+)\]", line)]
        if _KCAT_GIVEN.match(line):
            self._own(member, partitions, time.monotonic())
        elif _KCAT_TAKEN.match(line):
            self._give_up(member, partitions, time.monotonic())

    def _own(self, member: Member, partitions: Iterable[int], at_s: float) -> None:
        member.assignments += 1
        for partition in partitions:
            member.owned.setdefault(partition, at_s)

    def _give_up(self, member: Member, partitions: Iterable[int], at_s: float) -> None:
        for partition in partitions:
            began_s = member.owned.pop(partition, None)
            # One that stood still learns late that it has lost what it had; that time is not its own.
            if began_s is not None:
                self._intervals[partition].append(Interval(began_s, at_s, member.name, member.lag_s))

    def _free(self, member: Member, at_s: float) -> None:
        with self._changed:
            self._give_up(member, list(member.owned), at_s)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], complaint: Callable[[], str]) -> None:
        """Wait for a condition, looking again whenever a member said something."""
        with self._changed:
            if not self._changed.wait_for(condition, DEADLINE_S):
                raise AssertionError(complaint())

    # Records

    def _produce(self) -> None:
        """Some records a second for every partition there is."""
        pause = threading.Event()
        while self._producing.is_set():
            for partition in range(self._partitions):
                self._producer.produce(TOPIC, b"record", partition=partition)
            self._producer.poll(0)
            pause.wait(0.02)
        assert self._producer.flush(DEADLINE_S) == 0

    def _stop_producing(self) -> None:
        self._producing.clear()
        if self._producing_thread.is_alive():
            self._producing_thread.join()

    def _high_watermark(self, partition: int) -> int:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "unused"})
        try:
            _, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=DEADLINE_S)
            return int(high)
        finally:
            consumer.close()


def _differ(now: Callable[[], object], before: object) -> bool:
    return now() != before


def _kcat(options: Options) -> list[str]:
    settings = {
        "partition.assignment.strategy": options.assignor,
        "session.timeout.ms": options.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
        "auto.commit.interval.ms": 250,
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 500,
    }
    if options.instance is not None:
        settings["group.instance.id"] = options.instance
    command = ["kcat", "-b", options.bootstrap, "-G", options.group, "-u", "-f", "%p %o\\n"]
    for name, value in settings.items():
        command += ["-X", f"{name}={value}"]
    return [*command, options.topic]
