"""The topics of a pipeline: those that it reads must exist, and those that it writes are created.

What always holds: an existing topic is never changed; if its settings don't suit its use, a warning says so. A shadow's
topic has the same number of partitions as the live one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog.client.admin.admin import Admin
from tidelog.client.admin.types import ConfigResource, NewTopic, OffsetSpec, ResourceType
from tidelog.client.errors import BrokerError, ClientError
from tidelog.client.types import TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.outputs import Output, TopicOutput
from tidelog.protocol import ErrorCode

if TYPE_CHECKING:
    from tidelog.pipeline.declaration import Pipeline, TopicInput
    from tidelog.pipeline.versions.registry_rows import Offsets

_COMPACTED = {"cleanup.policy": "compact"}
_MISSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)


def prepare_topics(
    admin: Admin,
    pipeline: Pipeline,
    outputs: Iterable[Output],
    tell: Callable[[str], None],
    *,
    dead_letters: str | None = None,
) -> None:
    """Check the input topics and create the output topics; `dead_letters` overrides the declared topic."""
    dead_letters = dead_letters or pipeline.dead_letters
    partitions = {topic.name: len(topic.partitions) for topic in admin.list_topics()}
    for name, declared in pipeline.inputs.items():
        topics = (declared.topic,) if isinstance(declared.topic, str) else declared.topic
        for topic in topics:
            if topic not in partitions:
                raise PipelineError(
                    f"pipeline {pipeline.name!r}: input {name!r} reads topic {topic}, which does not exist; "
                    f"create it with 'tidelog topics create {topic}'"
                )
    for name, streamed in pipeline.topic_inputs.items():
        if streamed.pattern and not _matching(streamed.pattern, partitions):
            raise PipelineError(f"pipeline {pipeline.name!r}: input {name!r}: no topic matches {streamed.pattern!r}")
    wanted = {dead_letters: NewTopic(dead_letters)}
    for output in outputs:
        if isinstance(output, TopicOutput):
            wanted[output.topic] = _new_topic(output, partitions)
    missing = [topic for name, topic in wanted.items() if name not in partitions]
    if missing:
        _create(admin, missing)
    for output in outputs:
        if isinstance(output, TopicOutput) and output.mode == "upsert" and output.topic in partitions:
            _check_compacted(admin, output, tell)


def _new_topic(output: TopicOutput, partitions: Mapping[str, int]) -> NewTopic:
    configs: dict[str, str | None] = {**(_COMPACTED if output.mode == "upsert" else {}), **output.configs}
    count = output.partitions or partitions.get(output.name, -1)
    return NewTopic(output.topic, count, output.replication_factor or -1, configs)


def _create(admin: Admin, topics: list[NewTopic]) -> None:
    created = admin.create_topics(topics)
    for error in created.errors.values():
        # Another run may have created it first.
        if not isinstance(error, BrokerError) or error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise error
    admin.wait_for_topics([topic.name for topic in topics])


def _check_compacted(admin: Admin, output: TopicOutput, tell: Callable[[str], None]) -> None:
    resource = ConfigResource(ResourceType.TOPIC, output.topic)
    try:
        entry = admin.describe_configs(resource, ["cleanup.policy"])[resource].get("cleanup.policy")
    except ClientError as error:
        tell(f"can't check whether topic {output.topic} is compacted: {error}")
        return
    if entry is not None and "compact" not in (entry.value or ""):
        tell(
            f"topic {output.topic} is written with upserts but is not compacted: it keeps every update until retention "
            f"deletes it, including the last one of a key; see 'tidelog configs'"
        )


def resolve_start(admin: Admin, declared: TopicInput, known: Offsets) -> Offsets:
    """Where the first run of an input starts, as fixed offsets that can be stored.

    Known offsets are kept; partitions added since then start at the earliest.
    """
    topics = {topic.name: topic for topic in admin.list_topics()}
    names = _matching(declared.pattern, topics) if declared.pattern else declared.topics
    partitions = [
        TopicPartition(name, index) for name in names if name in topics for index in range(len(topics[name].partitions))
    ]
    starting: str | Offsets = known or declared.starting
    if isinstance(starting, Mapping):
        given = {
            TopicPartition(topic, int(index)): offset
            for topic, rows in starting.items()
            for index, offset in rows.items()
        }
        earliest = _listed(admin, [each for each in partitions if each not in given], OffsetSpec.EARLIEST)
        return _nested({each: given.get(each, earliest.get(each, 0)) for each in partitions})
    if starting == "earliest":
        return _nested(_listed(admin, partitions, OffsetSpec.EARLIEST))
    if starting == "latest":
        return _nested(_listed(admin, partitions, OffsetSpec.LATEST))
    if starting.startswith("group:"):
        group = starting.removeprefix("group:").strip()
        committed = admin.list_consumer_group_offsets(group)[group]
        earliest = _listed(admin, [each for each in partitions if each not in committed], OffsetSpec.EARLIEST)
        return _nested({each: committed[each].offset if each in committed else earliest[each] for each in partitions})
    raise PipelineError(
        f"starting={starting!r} is not 'earliest', 'latest', 'group:<id>' or offsets such as {{'topic': {{0: 17}}}}"
    )


def _matching(pattern: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if re.fullmatch(pattern, name))


def end_offsets(admin: Admin, topics: Iterable[str]) -> Offsets:
    """The end offsets of these topics for read_committed consumers; deleted topics are left out."""
    described = admin.describe_topics(list(topics))
    for error in described.errors.values():
        if not isinstance(error, BrokerError) or error.code not in _MISSING:
            raise error
    partitions = [
        TopicPartition(name, index)
        for name, topic in described.succeeded.items()
        for index in range(len(topic.partitions))
    ]
    listed = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), isolation_level="read_committed")
    return _nested({partition: listed[partition].offset for partition in partitions})


def _listed(admin: Admin, partitions: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    listed = admin.list_offsets(dict.fromkeys(partitions, spec), isolation_level="read_committed")
    return {partition: listed[partition].offset for partition in partitions}


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    rows: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in offsets.items():
        rows.setdefault(topic, {})[partition] = offset
    return rows
