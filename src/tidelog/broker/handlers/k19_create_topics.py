"""CreateTopics (key 19).

Versions served: 2-7.
- 2: the baseline, with validate_only and messages. 3: throttled after the answer (KIP-219). 4: -1 partitions or
  replicas ask for the broker's defaults (KIP-464). 5: flexible; the answer tells the new topic's settings (KIP-525).
- 6: THROTTLING_QUOTA_EXCEEDED may be answered (KIP-599). 7: the answer has the topic id (KIP-516).

A topic that is answered without an error can be used at once: the answer waits until its partitions are open. A topic
that takes longer than timeout_ms is answered with REQUEST_TIMED_OUT and is created all the same; with a timeout_ms of 0
or less nothing is created. Of a setting that is given twice the last value counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from tidelog.broker.config_description import describe_topic
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller.requests import NO_TIME, NewTopic, TopicResult
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_CONFIGS_FROM_VERSION = 5


@handles(CREATE_TOPICS, "2-7", on_controller=True)
async def handle_create_topics(request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
    counts = Counter(topic.name for topic in request.topics)
    refused = {name: _duplicate(name) for name, count in counts.items() if count > 1}
    new_topics: list[NewTopic] = []
    for topic in request.topics:
        if topic.name in refused:
            continue
        problem = _problem(topic)
        if problem is None:
            new_topics.append(_new_topic(topic))
        else:
            refused[topic.name] = problem
    timeout_s = request.timeout_ms / 1000
    if timeout_s <= 0:
        return CreateTopicsResponse(topics=[_refusal(name, ErrorCode.REQUEST_TIMED_OUT, NO_TIME) for name in counts])
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    results = await context.services.controller.create_topics(
        new_topics, validate_only=request.validate_only, timeout_s=timeout_s
    )
    describe = _ConfigsDescription(context)
    answers = {result.name: _answer(result, describe) for result in results}
    made = {result.topic_id: result.name for result in results if result.error is ErrorCode.NONE}
    for topic_id in await context.services.replicas.wait_until_opened(made, deadline_s):
        message = "The topic was created, but not all of its partitions are open yet."
        answers[made[topic_id]] = _refusal(made[topic_id], ErrorCode.REQUEST_TIMED_OUT, message)
    answers.update(refused)
    return CreateTopicsResponse(topics=[answers[name] for name in counts])


def _duplicate(name: str) -> CreatableTopicResult:
    return _refusal(name, ErrorCode.INVALID_REQUEST, "The request names the topic more than once.")


def _refusal(name: str, error: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error, error_message=message)


def _problem(topic: CreatableTopic) -> CreatableTopicResult | None:
    """What can't be said in a NewTopic, whose assignments have each partition once."""
    if len({assignment.partition_index for assignment in topic.assignments}) < len(topic.assignments):
        message = "The request assigns a partition more than once."
        return _refusal(topic.name, ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return None


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={assignment.partition_index: assignment.broker_ids for assignment in topic.assignments},
        configs={config.name: config.value for config in topic.configs},
    )


def _answer(result: TopicResult, describe: _ConfigsDescription) -> CreatableTopicResult:
    if result.error is not ErrorCode.NONE:
        return _refusal(result.name, result.error, result.message or result.error.description)
    return CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=describe.configs(result),
    )


class _ConfigsDescription:
    """The settings of new topics, told once for all that set the same: a request may name thousands of topics."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._known: dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]] = {}

    def configs(self, result: TopicResult) -> list[CreatableTopicConfigs]:
        if self._context.version < _CONFIGS_FROM_VERSION:
            return []
        overrides = frozenset(result.configs.items())
        if overrides not in self._known:
            self._known[overrides] = self._describe(result)
        return self._known[overrides]

    def _describe(self, result: TopicResult) -> list[CreatableTopicConfigs]:
        services = self._context.services
        image = services.cluster.image
        return [
            CreatableTopicConfigs(
                name=described.row.name,
                value=described.value,
                read_only=described.read_only,
                config_source=described.source,
                is_sensitive=described.row.sensitive,
            )
            for described in describe_topic(services.settings, services.table, image, result.configs)
        ]
