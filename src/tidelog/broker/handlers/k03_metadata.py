"""Metadata (key 3): brokers, topics, partitions and their leaders.

Versions served: 0-13.
- 0: an empty list of topics asks for all. 1: null asks for all, empty for none; rack, controller, internal topics.
- 2: cluster id. 3: throttle time. 4: the client says whether topics may be created. 5: offline replicas.
- 6: throttled after the answer (KIP-219). 7: leader epoch (KIP-320). 8: authorized operations (KIP-430). 9: flexible.
- 10: topic id in the answer (KIP-516). 11: without the cluster's authorized operations (KIP-700). 12: topics by id.
- 13: an error of the whole answer (KIP-1102), which this broker never needs.

A topic that does not exist is answered with UNKNOWN_TOPIC_OR_PARTITION; if it may be created it is, in the background,
and the client finds it when it asks again. A topic whose partitions are still being opened is answered with
LEADER_NOT_AVAILABLE and no partitions, so that clients ask again; of one that grows, the old partitions are shown.
Every leader is among the brokers of the same answer: some clients fail on one that they have no address of.
"""

from __future__ import annotations

import uuid

from tidelog.broker.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED_FOR, TOPIC_OPERATIONS
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.broker.services import BrokerServices
from tidelog.common.checks import topic_name_problem
from tidelog.common.ids import ZERO_UUID
from tidelog.common.steps import Steps
from tidelog.controller.image import INTERNAL_TOPICS, ClusterImage, TopicImage
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k03_metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

_TOPIC_IDS_FROM_VERSION = 12


@handles(METADATA, "0-13")
def handle_metadata(request: MetadataRequest, context: RequestContext) -> Steps[MetadataResponse]:
    image, live_brokers, topics = yield from _topics(request, context)
    while live_brokers != context.services.metadata_view.live_brokers:
        # Brokers came or went between two steps, and the answer would not list the leaders of some topics.
        image, live_brokers, topics = yield from _topics(request, context)
    view = context.services.metadata_view
    return MetadataResponse(
        brokers=view.brokers(context.listener_name),
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )


def _topics(
    request: MetadataRequest, context: RequestContext
) -> Steps[tuple[ClusterImage, frozenset[int], list[MetadataResponseTopic]]]:
    """The topics to answer with, the image they are from, and the brokers that were alive when they were begun."""
    services = context.services
    image, view = services.cluster.image, services.metadata_view
    view.follow(image, fenced=services.replicas.fenced_node_ids)
    live_brokers = view.live_brokers
    if request.topics is not None and (context.version > 0 or request.topics):
        return image, live_brokers, (yield from _wanted_topics(request, context, image))
    topics = []
    for topic in image.topics.values():
        topics.append((yield from _topic(topic, request, services)))
        yield 0
    return image, live_brokers, topics


def _wanted_topics(
    request: MetadataRequest, context: RequestContext, image: ClusterImage
) -> Steps[list[MetadataResponseTopic]]:
    may_create = request.allow_auto_topic_creation and context.services.settings.get_bool("auto.create.topics.enable")
    to_create: list[str] = []
    topics: list[MetadataResponseTopic] = []
    seen: set[str | uuid.UUID] = set()
    asked = request.topics or ()
    if context.version >= _TOPIC_IDS_FROM_VERSION and any(wanted.topic_id != ZERO_UUID for wanted in asked):
        # Beside ids, names don't count, as in Kafka.
        asked = [wanted for wanted in asked if wanted.topic_id != ZERO_UUID]
    for wanted in asked:
        yield 0
        key = wanted.topic_id if wanted.topic_id != ZERO_UUID else wanted.name or ""
        if key in seen:
            continue
        seen.add(key)
        found = _find(wanted, image, context.version)
        if isinstance(found, TopicImage):
            topics.append((yield from _topic(found, request, context.services)))
            continue
        if found is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and may_create and wanted.name not in INTERNAL_TOPICS:
            to_create.append(wanted.name or "")
        # With an id the name doesn't count. Only the versions that take ids can answer without a name.
        name = wanted.name if wanted.topic_id == ZERO_UUID else None
        if context.version < _TOPIC_IDS_FROM_VERSION:
            name = wanted.name or ""
        topics.append(MetadataResponseTopic(error_code=found, name=name, topic_id=wanted.topic_id))
    if to_create:
        context.services.auto_topic_creation.start(to_create)
    return topics


def _topic(topic: TopicImage, request: MetadataRequest, services: BrokerServices) -> Steps[MetadataResponseTopic]:
    view, opening_from = services.metadata_view, services.replicas.opening_from(topic.topic_id)
    if request.include_topic_authorized_operations:
        return (yield from view.topic_with_operations(topic, TOPIC_OPERATIONS, opening_from))
    return (yield from view.topic(topic, opening_from))


def _find(wanted: MetadataRequestTopic, image: ClusterImage, version: int) -> TopicImage | ErrorCode:
    if wanted.topic_id != ZERO_UUID:
        if version < _TOPIC_IDS_FROM_VERSION:
            return ErrorCode.INVALID_REQUEST
        return image.topics_by_id.get(wanted.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    if wanted.name is None:
        return ErrorCode.INVALID_REQUEST
    if wanted.name in image.topics:
        return image.topics[wanted.name]
    if topic_name_problem(wanted.name) is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
