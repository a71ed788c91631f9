"""DescribeProducers, version 0 (KIP-664): the idempotent producers that a partition's leader remembers."""

from __future__ import annotations

from collections.abc import Coroutine

from tidelog.broker.registry import handles
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.common.checks import topic_name_problem
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k61_describe_producers import (
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


@handles(DESCRIBE_PRODUCERS, "0")
def handle_describe_producers(
    request: DescribeProducersRequest, context: RequestContext
) -> Steps[DescribeProducersResponse | Coroutine[None, None, Steps[DescribeProducersResponse]]]:
    replicas = context.services.replicas
    names = ((topic.name, index) for topic in request.topics for index in topic.partition_indexes)
    return replicas.log_opening.once_open(replicas.find_some(names), _describe(request, replicas))


def _describe(request: DescribeProducersRequest, replicas: ReplicaManager) -> Steps[DescribeProducersResponse]:
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        yield 0
    response = DescribeProducersResponse()
    for name, indexes in asked.items():
        answer = TopicResponse(name=name)
        for index in indexes:
            answer.partitions.append((yield from _answer(replicas, name, index)))
            yield 0
        response.topics.append(answer)
    return response


def _answer(replicas: ReplicaManager, topic: str, index: int) -> Steps[PartitionResponse]:
    if topic_name_problem(topic) is not None:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
        return PartitionResponse(partition_index=index, error_code=error, error_message=error.description)
    try:
        partition = replicas.find_leader(topic, index)
    except KafkaError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.code.description)
    producers = []
    for producer in partition.log.active_producers():
        producers.append(
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.current_txn_first_offset,
            )
        )
        yield 0
    return PartitionResponse(partition_index=index, active_producers=producers)
