"""CreateTopics (key 19).

Versions served: 2-7.
- 2: the baseline, with validate_only and messages. 3: throttled after the answer (KIP-219). 4: -1 partitions or
  replicas ask for the broker's defaults (KIP-464). 5: flexible; the answer tells the new topic's settings (KIP-525).
- 6: THROTTLING_QUOTA_EXCEEDED may be answered (KIP-599). 7: the answer has the topic id (KIP-516).

A topic that is answered without an error can be used at once: the controller's image holds it before the answer goes
out.
"""

from __future__ import annotations

from collections import Counter

from tidelog.broker.config_description import describe_topic
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller.requests import NewTopic, TopicResult
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


@handles(CREATE_TOPICS, "2-7")
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
    results = await context.services.controller.create_topics(new_topics, validate_only=request.validate_only)
    answers = {result.name: _answer(result, context) for result in results}
    answers.update(refused)
    return CreateTopicsResponse(topics=[answers[name] for name in counts])


def _duplicate(name: str) -> CreatableTopicResult:
    return _refusal(name, ErrorCode.INVALID_REQUEST, "the topic stands more than once in the request")


def _refusal(name: str, error: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error, error_message=message)


def _problem(topic: CreatableTopic) -> CreatableTopicResult | None:
    """What can't be said in a NewTopic, whose settings and assignments have each name once."""
    if len({assignment.partition_index for assignment in topic.assignments}) < len(topic.assignments):
        message = "a partition is assigned more than once"
        return _refusal(topic.name, ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if len({config.name for config in topic.configs}) < len(topic.configs):
        return _refusal(topic.name, ErrorCode.INVALID_CONFIG, "a setting stands more than once")
    return None


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={assignment.partition_index: assignment.broker_ids for assignment in topic.assignments},
        configs={config.name: config.value for config in topic.configs},
    )


def _answer(result: TopicResult, context: RequestContext) -> CreatableTopicResult:
    if result.error is not ErrorCode.NONE:
        return _refusal(result.name, result.error, result.message or result.error.description)
    return CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=_configs(result, context) if context.version >= _CONFIGS_FROM_VERSION else [],
    )


def _configs(result: TopicResult, context: RequestContext) -> list[CreatableTopicConfigs]:
    services = context.services
    return [
        CreatableTopicConfigs(
            name=described.row.name,
            value=described.value,
            read_only=described.read_only,
            config_source=described.source,
            is_sensitive=described.row.sensitive,
        )
        for described in describe_topic(services.settings, services.table, services.controller.image, result.configs)
    ]
