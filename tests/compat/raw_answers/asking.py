"""Asks one broker the cases, and flattens each answer to a dict of field paths and values.

What always holds: whatever differs between two runs of one broker (ids, times, ports, paths, texts of errors) is
replaced by what kind of thing it is, so that two answers with the same meaning are equal; nothing else is touched.
"""

from __future__ import annotations

import itertools
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from raw_answers.odd_requests import BROKER, Case, Template
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import Api, ErrorCode, decode, decode_response_header, request_class, response_class
from tidelog.protocol.declare import Message
from tidelog.protocol.messages.k00_produce import PRODUCE, PartitionProduceResponse, ProduceResponse
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
from tidelog.protocol.messages.k11_join_group import (
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tidelog.protocol.messages.k14_sync_group import SYNC_GROUP, SyncGroupRequest, SyncGroupResponse
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.protocol.registry import all_apis
from tidelog.protocol.schema import fields_of
from tidelog.records import encode_batch
from tidelog.testing.raw_client import RawClient, frame, produce_request

Answer = dict[str, object]
ABSENT = "absent"
NO_ANSWER = "no answer"
CONNECTION_CLOSED = "connection closed"

_READY_S = 60.0
_ANSWER_S = 8.0
_SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x04read\xff\xff\xff\xff\x00\x00\x00\x00"
# Fields that name an element of a list, the first that the element has.
_KEYS = (
    *("name", "topic", "topic_name", "group_id", "transactional_id", "resource_name", "user", "key", "log_dir"),
    *("partition_index", "partition", "index", "partition_id", "api_key", "node_id", "broker_id"),
)
_TIMES = re.compile(r"(^|_)(time|timestamp)(_ms)?$")
_MASKED = {
    "cluster_id": "an id",
    "member_id": "an id",
    "leader": "an id",
    "port": "a port",
    "host": "a host",
    "log_dir": "a path",
    "documentation": "a text",
    "finalized_features_epoch": "an epoch",
    "producer_id": "an id",
    "total_bytes": "a size",
    "usable_bytes": "a size",
    "controller_id": "a node",
    "session_id": "an id",
    # The two took different numbers of records before.
    "base_offset": "an offset",
    "low_watermark": "an offset",
    "partition_size": "a size",
}


class Place:
    """One broker with the topics and groups that the cases speak of."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client = self._connect()
        self._numbers = itertools.count(1)
        self._apis = {api.name: api for api in all_apis()}
        self._shared: dict[str, Any] = {"$unknown_id": uuid.UUID(int=77), "$subscription": _SUBSCRIPTION}
        self.versions = self._ask_versions()

    def close(self) -> None:
        self._client.close()

    def set_up(self) -> None:
        """Make what the cases share: topics, records to read, a group with committed offsets."""
        for name, partitions, configs in (
            ("read", 3, {}),
            ("written", 3, {}),
            ("configured", 1, {}),
            ("compacted", 1, {"cleanup.policy": "compact", "segment.bytes": "1048576"}),
        ):
            self._shared[f"${name}_topic"] = name
            self._shared[f"${name}_topic_id"] = self.create_topic(name, partitions, configs)
        began_ms = time.time_ns() // 1_000_000
        self._shared["$topic"], self._shared["$topic_id"] = "written", self._shared["$written_topic_id"]
        self._shared["$records"] = encode_batch([(b"k", b"v", (), None)], now_ms=began_ms)
        for number in range(5):
            request = produce_request("read", b"one", b"two")
            # Times of its own: which record is the newest must not depend on how fast a broker answers.
            batch = encode_batch([(None, b"one", (), None), (None, b"two", (), None)], now_ms=began_ms + number)
            request.topic_data[0].partition_data[0].records = batch
            # Kafka's new topics take a moment until they have their leader.
            self._ask_until(PRODUCE, request, ProduceResponse, 9, lambda answer: _produced(answer).error_code == 0)
        self._find_coordinators()
        self._commit("committed")
        self._shared["$committed_group"] = "committed"
        # Kafka's first producer ids take it a while.
        self.new_transaction()

    def broker_settings(self) -> set[str]:
        """The names of the settings that the broker describes."""
        resource = DescribeConfigsResource(resource_type=BROKER, resource_name="1", configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource])
        (described,) = self._ask(DESCRIBE_CONFIGS, request, DescribeConfigsResponse, 4).results
        return {config.name for config in described.configs}

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> uuid.UUID:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
        (created,) = self._ask(CREATE_TOPICS, request, CreateTopicsResponse, 7).topics
        assert created.error_code == 0, created
        topic_id: uuid.UUID = created.topic_id
        return topic_id

    def answer(self, case: Case) -> Answer:
        """What the broker answers, flat and without what differs from run to run."""
        api = self._apis[case.api]
        values = _Values(self._shared, self)
        request = _build(request_class(api), case.template, case.version, values)
        try:
            sent = frame(api, request, case.version)
        except Exception as error:  # whatever the codec raises, the case is a mistake
            raise AssertionError(f"{case.name} can't be encoded") from error
        try:
            self._client.sock.sendall(sent)
            data = self._client.receive_frame()
        except TimeoutError:
            self._reconnect()
            return {"": NO_ANSWER}
        except ConnectionError:
            self._reconnect()
            return {"": CONNECTION_CLOSED}
        _, offset = decode_response_header(api, case.version, data)
        response = decode(response_class(api), data, case.version, offset)
        flat: Answer = {}
        _flatten(response, case.version, "", flat)
        return flat

    def new_transaction(self) -> tuple[str, int, int]:
        """A transactional id with its producer."""
        name = self.fresh()
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=600_000)
        made = self._ask_until(
            INIT_PRODUCER_ID, request, InitProducerIdResponse, 4, lambda answer: bool(answer.error_code == 0)
        )
        return name, made.producer_id, made.producer_epoch

    def new_member(self) -> tuple[str, str]:
        """A group of one member that has its assignment."""
        group = self.fresh()
        joining = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=_SUBSCRIPTION)],
        )
        joined = self._ask(JOIN_GROUP, joining, JoinGroupResponse, 3)
        assert joined.error_code == 0, joined
        syncing = SyncGroupRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
        assert self._ask(SYNC_GROUP, syncing, SyncGroupResponse, 3).error_code == 0
        return group, joined.member_id

    def fresh(self) -> str:
        """A name that no case has had before; both brokers give the same, in the same order."""
        return f"fresh-{next(self._numbers)}"

    def _find_coordinators(self) -> None:
        """Kafka makes the topics of groups and of transactions when their coordinators are first looked for."""
        for kind in (0, 1):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["first"])
            self._ask_until(
                FIND_COORDINATOR,
                request,
                FindCoordinatorResponse,
                4,
                lambda answer: bool(answer.coordinators[0].error_code == 0),
            )

    def _commit(self, group: str) -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="note")
        topic = OffsetCommitRequestTopic(name="read", partitions=[partition])
        request = OffsetCommitRequest(group_id=group, topics=[topic])
        self._ask_until(
            OFFSET_COMMIT,
            request,
            OffsetCommitResponse,
            8,
            lambda answer: bool(answer.topics[0].partitions[0].error_code == 0),
        )

    def _ask_versions(self) -> dict[str, tuple[int, int]]:
        request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
        answer = self._ask(API_VERSIONS, request, ApiVersionsResponse, 3)
        names = {api.key: api.name for api in all_apis()}
        return {
            names[each.api_key]: (each.min_version, each.max_version)
            for each in answer.api_keys
            if each.api_key in names
        }

    def _ask(self, api: Api, request: object, response: type[Any], version: int) -> Any:
        return self._client.ask(api, request, response, version)

    def _ask_until(
        self, api: Api, request: object, response: type[Any], version: int, is_good: Callable[[Any], bool]
    ) -> Any:
        """Ask again until the answer is good."""
        deadline_s = time.monotonic() + _READY_S
        while not is_good(answer := self._ask(api, request, response, version)):
            assert time.monotonic() < deadline_s, answer
            time.sleep(0.05)
        return answer

    def _connect(self) -> RawClient:
        client = RawClient(self._port)
        client.sock.settimeout(_ANSWER_S)
        return client

    def _reconnect(self) -> None:
        self._client.close()
        self._client = self._connect()


def _produced(answer: ProduceResponse) -> PartitionProduceResponse:
    return answer.responses[0].partition_responses[0]


class _Values:
    """What the `$` names of one case stand for; those that need preparation get it when they are first asked for."""

    def __init__(self, shared: Mapping[str, Any], place: Place) -> None:
        self._values = dict(shared)
        self._place = place

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            self._prepare(name)
        return self._values[name]

    def _prepare(self, name: str) -> None:
        place = self._place
        if name == "$fresh":
            self._values[name] = place.fresh()
        elif name in ("$fresh_topic", "$fresh_topic_id"):
            topic = place.fresh()
            self._values |= {"$fresh_topic": topic, "$fresh_topic_id": place.create_topic(topic)}
        elif name in ("$group", "$member"):
            group, member = place.new_member()
            self._values |= {"$group": group, "$member": member}
        else:
            transaction, producer_id, epoch = place.new_transaction()
            self._values |= {"$transaction": transaction, "$producer_id": producer_id, "$producer_epoch": epoch}


def _build(struct: type[Message], template: Template, version: int, values: _Values) -> Message:
    given: dict[str, Any] = {}
    for field in fields_of(struct):
        if field.name not in template or not field.versions.holds(version):
            continue
        value = template[field.name]
        if field.struct is not None and value is not None:
            inner = field.struct
            value = (
                [_build(inner, each, version, values) for each in value]
                if field.is_array
                else _build(inner, value, version, values)
            )
        elif field.is_array and value is not None:
            value = [_resolved(each, values) for each in value]
        else:
            value = _resolved(value, values)
        given[field.name] = value
    return struct(**given)


def _resolved(value: Any, values: _Values) -> Any:
    return values[value] if isinstance(value, str) and value.startswith("$") else value


def _flatten(message: Any, version: int, prefix: str, flat: Answer) -> None:
    for field in fields_of(type(message)):
        if not field.versions.holds(version):
            continue
        value = getattr(message, field.name)
        if field.name == "error_message":
            # What an error says, and whether it says anything, is each broker's own.
            continue
        path = f"{prefix}{field.name}"
        if field.struct is not None and field.is_array and value is not None:
            flat[f"{path}#"] = len(value)
            for label, each in _labelled(value):
                _flatten(each, version, f"{path}[{label}].", flat)
        elif field.struct is not None and value is not None:
            _flatten(value, version, f"{path}.", flat)
        else:
            flat[path] = _masked(field.name, value)


def _labelled(elements: list[Any]) -> list[tuple[str, Any]]:
    """Each with a name that doesn't depend on the order, where elements have one that is theirs alone."""
    labels = [_label(each) for each in elements]
    if None in labels or len(set(labels)) < len(labels):
        return [(str(number), each) for number, each in enumerate(elements)]
    return [(str(label), each) for label, each in zip(labels, elements, strict=True)]


def _label(element: Any) -> str | None:
    for key in _KEYS:
        value = getattr(element, key, None)
        if value is not None and key != "log_dir":
            kind = getattr(element, "resource_type", None)
            return (str(value)[:60] or "''") + ("" if kind is None else f" {kind}")
    return None


def _masked(name: str, value: Any) -> object:
    if name.endswith("error_code"):
        return ErrorCode(value).name
    if isinstance(value, uuid.UUID):
        return "zero" if value == ZERO_UUID else "an id"
    if name == "value" and isinstance(value, str) and value.startswith("/"):
        return "a path"
    if name in _MASKED and value not in (None, "", -1):
        return _MASKED[name]
    if _TIMES.search(name) and isinstance(value, int) and value > 0:
        return "a time"
    if isinstance(value, (bytes, memoryview, bytearray)):
        return f"{len(value)} bytes"
    return value


def differences(case: Case, first: Place, second: Place) -> dict[str, tuple[object, object]]:
    """Where the answers of the two differ: the path of each field, and both values."""
    left, right = first.answer(case), second.answer(case)
    return {
        path: (left.get(path, ABSENT), right.get(path, ABSENT))
        for path in {**left, **right}
        if left.get(path, ABSENT) != right.get(path, ABSENT)
    }
