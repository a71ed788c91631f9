"""DescribeProducers, version 0 (KIP-664): the idempotent producers that a partition's leader remembers."""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import KafkaError
from tidelog.protocol.messages.k61_describe_producers import (
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


@handles(DESCRIBE_PRODUCERS, "0")
def handle_describe_producers(request: DescribeProducersRequest, context: RequestContext) -> DescribeProducersResponse:
    replicas = context.services.replicas
    response = DescribeProducersResponse()
    for topic in request.topics:
        answers = [_answer(replicas, topic.name, index) for index in dict.fromkeys(topic.partition_indexes)]
        response.topics.append(TopicResponse(name=topic.name, partitions=answers))
    return response


def _answer(replicas: ReplicaManager, topic: str, index: int) -> PartitionResponse:
    try:
        partition = replicas.find_leader(topic, index)
    except KafkaError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.code.description)
    producers = [
        ProducerState(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_timestamp,
            coordinator_epoch=producer.coordinator_epoch,
            current_txn_start_offset=producer.current_txn_first_offset,
        )
        for producer in partition.log.active_producers()
    ]
    return PartitionResponse(partition_index=index, active_producers=producers)
