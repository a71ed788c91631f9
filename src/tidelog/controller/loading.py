"""Builds the image that a newly elected controller starts with from the records of the store.

What always holds: `topics/<name>` decides whether a topic exists; partition chunks that belong to no topic were left by
an interrupted creation or deletion and count as garbage, and so do the tombstones of deleted topics. Removing them is
safe only now, at the start of a new controller epoch, when no write that compares an old token can succeed any more. A
topic with missing chunks means damage, and stops the controller.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidelog.common.ids import uuid_to_text
from tidelog.controller import layout
from tidelog.controller.image import INTERNAL_TOPICS, ClusterImage, PartitionState, TopicImage
from tidelog.controller.layout import Record
from tidelog.controller.ledger import Ledger
from tidelog.metadata.store import MetadataStoreError
from tidelog.protocol.config_values import ConfigResource, ResourceType


@dataclass(frozen=True, slots=True)
class Loaded:
    image: ClusterImage
    garbage: list[str]
    # Topics whose deletion the store remembers; brokers may not have removed all of their files.
    deleted_topic_ids: frozenset[uuid.UUID]
    next_producer_id: int


async def load(ledger: Ledger, controller_id: int, registered: Mapping[int, int]) -> Loaded:
    """Everything in the store.

    A broker counts as alive only if it registered with this controller under that epoch (`registered`): the others
    may have died since, and register again if they haven't.
    """
    cluster = (await ledger.read(layout.CLUSTER)).get(layout.CLUSTER, {})
    if cluster.get("version", layout.LAYOUT_VERSION) > layout.LAYOUT_VERSION:
        raise MetadataStoreError(
            f"the cluster's metadata has layout version {cluster['version']}, written by a newer Tidelog; "
            f"this one reads up to {layout.LAYOUT_VERSION}. Start the newer version."
        )
    brokers = {}
    for key, record in (await ledger.read(layout.BROKERS)).items():
        broker = layout.parse_broker(key, record)
        brokers[broker.node_id] = replace(broker, fenced=registered.get(broker.node_id) != broker.epoch)
    configs: dict[ConfigResource, Mapping[str, str]] = {}
    for key, record in (await ledger.read(layout.BROKER_CONFIGS)).items():
        resource = ConfigResource(ResourceType.BROKER, layout.broker_configs_name(key))
        configs[resource] = record["configs"]
    topics, garbage, deleted_topic_ids = await _load_topics(ledger, configs)
    producer_ids = (await ledger.read(layout.PRODUCER_IDS)).get(layout.PRODUCER_IDS, {"next": 0})
    image = ClusterImage(
        cluster_id=cluster.get("id", ""),
        controller_id=controller_id,
        brokers=brokers,
        configs=configs,
    )
    return Loaded(image.with_topics(topics), garbage, frozenset(deleted_topic_ids), producer_ids["next"])


async def _load_topics(
    ledger: Ledger, configs: dict[ConfigResource, Mapping[str, str]]
) -> tuple[list[TopicImage], list[str], list[uuid.UUID]]:
    chunks: dict[str, list[tuple[str, Record]]] = {}
    for key, record in (await ledger.read(layout.PARTITIONS)).items():
        chunks.setdefault(key.split("/")[1], []).append((key, record))
    topics = []
    garbage = []
    deleted_topic_ids = []
    for key, record in (await ledger.read(layout.TOPICS)).items():
        name = key.removeprefix(layout.TOPICS)
        deleted_topic_id = layout.parse_tombstone(record)
        if deleted_topic_id is not None:
            garbage.append(key)
            deleted_topic_ids.append(deleted_topic_id)
            continue
        parsed = layout.parse_topic(record)
        found = sorted(chunks.pop(uuid_to_text(parsed.topic_id), []))
        states = [state for _, chunk in found for state in layout.parse_chunk(chunk)]
        topics.append(_topic(name, parsed, states))
        if parsed.configs:
            configs[ConfigResource(ResourceType.TOPIC, name)] = parsed.configs
    garbage.extend(key for orphans in chunks.values() for key, _ in orphans)
    return topics, garbage, deleted_topic_ids


def _topic(name: str, record: layout.TopicRecord, states: list[PartitionState]) -> TopicImage:
    if len(states) < record.partitions:
        raise MetadataStoreError(
            f"the metadata of topic {name!r} is damaged: it should have {record.partitions} partitions, "
            f"the states of {len(states)} are there. Restore the metadata store from a backup."
        )
    # An interrupted CreatePartitions leaves more states than partitions; the next one overwrites them.
    partitions = tuple(states[: record.partitions])
    return TopicImage(name, record.topic_id, partitions, name in INTERNAL_TOPICS, record.created_ms)
