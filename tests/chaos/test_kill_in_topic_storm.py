"""The broker is killed with -9 while topics are made, grown, changed and deleted: metadata and files must agree."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tidelog.common.ids import uuid_to_text
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.k20_delete_topics import DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.protocol.messages.k37_create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.protocol.messages.k44_incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.testing.raw_client import RawClient, produce_request

if TYPE_CHECKING:
    from tests.chaos.conftest import ServedBroker, StartServed

NAMES = [f"topic-{number}" for number in range(12)]
RETENTION = "retention.ms"
TOPIC_RESOURCE = 2
DEFAULT_RETENTION = "604800000"
WAIT_S = 30.0


@dataclass
class Topic:
    """What is known of a topic, from the answers of the broker."""

    topic_id: uuid.UUID
    partitions: int
    retention: str = DEFAULT_RETENTION
    # Records written to each partition since the topic was made.
    records: dict[int, int] = field(default_factory=dict)


@dataclass
class Change:
    """One request: what it does to the topics once it is answered with success."""

    send: Callable[[RawClient], int]
    apply: Callable[[dict[str, Topic]], None]
    name: str


class Storm:
    """Random changes, one after another, in a thread; the last one may be unanswered when the broker dies."""

    def __init__(self, broker: ServedBroker, source: random.Random, topics: dict[str, Topic]) -> None:
        self._broker = broker
        self._source = source
        self._topics = topics
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._progress = threading.Condition()
        self.answered = 0
        self.unanswered: Change | None = None
        self.refusal = ""

    def start(self) -> None:
        self._thread.start()

    def wait_for(self, answered: int) -> None:
        with self._progress:
            assert self._progress.wait_for(lambda: self.answered >= answered or self.refusal, WAIT_S), "it stands still"
        assert not self.refusal

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        assert not self.refusal

    def _run(self) -> None:
        with RawClient(self._broker.port) as client:
            while True:
                change = self._next_change()
                try:
                    error_code = change.send(client)
                except OSError:
                    self.unanswered = change
                    return
                with self._progress:
                    if error_code:
                        self.refusal = f"{change.name} was refused with {error_code}"
                    else:
                        change.apply(self._topics)
                        self.answered += 1
                    self._progress.notify()
                    if error_code:
                        return

    def _next_change(self) -> Change:
        name = self._source.choice(NAMES)
        topic = self._topics.get(name)
        if topic is None:
            return creation(name, self._source.randrange(1, 4))
        kind = self._source.choice([deletion, growth, setting])
        return kind(name, topic, self._source)


def creation(name: str, partitions: int) -> Change:
    made: list[uuid.UUID] = []

    def send(client: RawClient) -> int:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
        (result,) = client.ask(CREATE_TOPICS, request, CreateTopicsResponse, 7).topics
        made.append(result.topic_id)
        return result.error_code

    def apply(topics: dict[str, Topic]) -> None:
        # Without an answer its id is not known, and nothing can be wrong about it.
        topics[name] = Topic(made[0] if made else uuid.UUID(int=0), partitions)

    return Change(send, apply, f"the creation of {name}")


def deletion(name: str, topic: Topic, source: random.Random) -> Change:
    def send(client: RawClient) -> int:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=20_000)
        (result,) = client.ask(DELETE_TOPICS, request, DeleteTopicsResponse, 5).responses
        return result.error_code

    def apply(topics: dict[str, Topic]) -> None:
        del topics[name]

    return Change(send, apply, f"the deletion of {name}")


def growth(name: str, topic: Topic, source: random.Random) -> Change:
    count = topic.partitions + 1

    def send(client: RawClient) -> int:
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)], timeout_ms=20_000
        )
        (result,) = client.ask(CREATE_PARTITIONS, request, CreatePartitionsResponse, 3).results
        return result.error_code

    def apply(topics: dict[str, Topic]) -> None:
        topics[name].partitions = count

    return Change(send, apply, f"the growth of {name}")


def setting(name: str, topic: Topic, source: random.Random) -> Change:
    value = str(source.randrange(10**9))

    def send(client: RawClient) -> int:
        config = AlterableConfig(name=RETENTION, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        answer = client.ask(INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse, 1)
        return answer.responses[0].error_code

    def apply(topics: dict[str, Topic]) -> None:
        topics[name].retention = value

    return Change(send, apply, f"the new setting of {name}")


def what_is_there(client: RawClient) -> dict[str, Topic]:
    """The topics as the broker tells them."""
    metadata = client.ask(METADATA, MetadataRequest(topics=None), MetadataResponse, 12)
    found = {
        topic.name: Topic(topic.topic_id, len(topic.partitions)) for topic in metadata.topics if topic.name is not None
    }
    resources = [
        DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=[RETENTION])
        for name in found
    ]
    described = client.ask(
        DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=resources), DescribeConfigsResponse, 4
    ).results
    for result in described:
        (row,) = result.configs
        found[result.resource_name].retention = row.value or ""
    return found


def check_topics(found: dict[str, Topic], known: dict[str, Topic], unanswered: Change | None) -> None:
    """All that was answered holds; what was not may have happened or not, as a whole."""
    views = [{name: (topic.partitions, topic.retention) for name, topic in found.items()}]
    views.append({name: (topic.partitions, topic.retention) for name, topic in known.items()})
    if views[0] != views[1]:
        assert unanswered is not None
        unanswered.apply(known)
        views.append({name: (topic.partitions, topic.retention) for name, topic in known.items()})
        assert views[0] == views[2], unanswered.name
    for name, topic in known.items():
        assert topic.topic_id in (found[name].topic_id, uuid.UUID(int=0)), f"{name} has another id"
        topic.topic_id = found[name].topic_id


def check_directories(broker: ServedBroker, found: dict[str, Topic]) -> None:
    expected = {
        f"{name}-{partition}": uuid_to_text(topic.topic_id)
        for name, topic in found.items()
        for partition in range(topic.partitions)
    }
    directories = [path for path in broker.log_dir.iterdir() if path.is_dir() and not path.name.endswith("-delete")]
    actual = {
        path.name: (path / "partition.metadata").read_text().split("topic_id: ")[1].strip() for path in directories
    }
    assert actual == expected


def write_everywhere(client: RawClient, topics: dict[str, Topic]) -> None:
    """One more record into every partition: its offset tells that exactly the topic's own records are there."""
    for name, topic in topics.items():
        for partition in range(topic.partitions):
            request = produce_request(name, b"x", partition=partition)
            (answer,) = client.ask(PRODUCE, request, ProduceResponse, 9).responses[0].partition_responses
            written = topic.records.get(partition, 0)
            assert (answer.error_code, answer.base_offset) == (0, written), f"{name}-{partition}"
            topic.records[partition] = written + 1


@pytest.mark.parametrize("kills", [15, pytest.param(300, marks=pytest.mark.soak)])
@pytest.mark.timeout(1200)
def test_metadata_and_files_agree_after_every_kill(serve: StartServed, kills: int) -> None:
    source = random.Random(kills)
    broker = serve({"log.segment.delete.delay.ms": 0})
    known: dict[str, Topic] = {}
    for _ in range(kills):
        storm = Storm(broker, random.Random(source.random()), known)
        storm.start()
        storm.wait_for(source.randrange(1, 40))
        broker.kill()
        storm.join()
        broker.start()
        with RawClient(broker.port) as client:
            found = what_is_there(client)
            check_topics(found, known, storm.unanswered)
            check_directories(broker, found)
            write_everywhere(client, known)
    assert "Traceback" not in broker.output()
    assert "set aside" not in broker.output()
