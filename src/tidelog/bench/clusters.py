"""Clusters under measurement: three brokers of one kind, each a process of its own, all on this machine.

What always holds: all members are started at once and end together, whatever ends the measurement; a cluster counts as
running when each member answers and knows all others. Kafka's members are broker and controller in one, as Tidelog's.
"""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tidelog.bench.brokers import KAFKA_VERSION, BrokerProcess, KafkaBroker, KafkaQuorum, TidelogBroker
from tidelog.bench.errors import MeasurementError
from tidelog.bench.processes import cpu_s_of, resident_bytes_of
from tidelog.client.admin import Admin, OffsetSpec
from tidelog.client.errors import ClientError
from tidelog.client.types import PartitionMetadata, TopicMetadata, TopicPartition

MEMBERS: Final = 3
_DEADLINE_S: Final = 300.0
_POLL_S: Final = 0.005


class Cluster(ABC):
    """Brokers 1 to 3 of one cluster."""

    name: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.members: dict[int, BrokerProcess] = {}

    @abstractmethod
    def make_members(self) -> Sequence[BrokerProcess]:
        """All members, not started, by node id from 1 on."""

    @property
    def bootstrap(self) -> str:
        return ",".join(member.bootstrap for member in self.running)

    @property
    def running(self) -> list[BrokerProcess]:
        return [member for member in self.members.values() if member.is_running]

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all members so far."""
        return sum(cpu_s_of(member.pid) for member in self.running)

    @property
    def resident_bytes(self) -> list[int]:
        return [resident_bytes_of(member.pid) for member in self.running]

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.members = dict(enumerate(self.make_members(), 1))
        for member in self.members.values():
            member.launch()
        for member in self.members.values():
            member.wait_until_up(_DEADLINE_S)
        for member in self.members.values():
            with Admin(bootstrap_servers=member.bootstrap) as admin:
                wait_until("all members know each other", lambda: len(admin.describe_cluster().nodes) == MEMBERS)

    def kill(self) -> None:
        for member in self.members.values():
            member.kill()

    def stop(self) -> None:
        """End all of them at once and remove what they wrote."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def partitions(self, topic: str) -> tuple[PartitionMetadata, ...]:
        """Who leads and follows, as any member says that knows the topic."""
        found: list[TopicMetadata] = []

        def is_known() -> bool:
            found.append(admin.describe_topics(topic)[topic])
            return True

        with Admin(bootstrap_servers=self.bootstrap) as admin:
            wait_until(f"{topic} is known", is_known)
        return found[-1].partitions

    def leader(self, topic: str, partition: int = 0) -> BrokerProcess:
        return self.members[self.partitions(topic)[partition].leader_id]

    def wait_for_replicas(self, topic: str, in_sync: Sequence[int] = range(1, MEMBERS + 1)) -> None:
        """Wait until all partitions have leaders that answer, and these brokers are in sync with them."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:

            def are_in_sync() -> bool:
                partitions = admin.describe_topics(topic)[topic].partitions
                if not all(each.leader_id > 0 and {*in_sync} <= {*each.isr} for each in partitions):
                    return False
                # A leader is named before it leads.
                asked = (TopicPartition(topic, each.partition) for each in partitions)
                admin.list_offsets(dict.fromkeys(asked, OffsetSpec.LATEST)).raise_for_errors()
                return True

            wait_until(f"all replicas of {topic} are in sync", are_in_sync)


class TidelogCluster(Cluster):
    """Three times `tidelog serve` with its defaults and a node id."""

    name = "Tidelog"

    def make_members(self) -> Sequence[BrokerProcess]:
        data = self.directory / "data"
        return [
            TidelogBroker(self.directory / f"member-{number}", data=data, node_id=number)
            for number in range(1, MEMBERS + 1)
        ]


class KafkaCluster(Cluster):
    """Three KRaft brokers, each also a controller, with the settings that Kafka ships for one."""

    name = f"Apache Kafka {KAFKA_VERSION}"

    def make_members(self) -> Sequence[BrokerProcess]:
        quorum = KafkaQuorum(MEMBERS)
        settings: Mapping[str, str] = {"offsets.topic.replication.factor": str(MEMBERS)}
        return [
            KafkaBroker(self.directory / f"member-{number}", settings=settings, quorum=quorum, node_id=number)
            for number in range(1, MEMBERS + 1)
        ]


def wait_until(what: str, condition: Callable[[], bool], deadline_s: float = _DEADLINE_S) -> None:
    """Ask again and again; an answer that fails is one of no."""
    ends_s = time.monotonic() + deadline_s
    while True:
        try:
            if condition():
                return
        except ClientError:
            pass
        if time.monotonic() > ends_s:
            raise MeasurementError(f"gave up after {deadline_s:g} s waiting until {what}")
        time.sleep(_POLL_S)
