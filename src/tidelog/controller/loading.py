"""Builds the image that a newly elected controller starts with from the records of the store.

What always holds: `topics/<name>` decides whether a topic exists; partition chunks that belong to no topic were left by
an interrupted creation or deletion and count as garbage, and so do the tombstones of deleted topics once no broker may
need them, and the records of groups that no longer have their own settings. Removing them is safe only now, at the
start of a new controller epoch, when no write that compares an old token can still succeed. A topic with missing
chunks means damage, and stops the controller.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

from tidelog.common.light_dataclass import dataclass
from tidelog.common.steps import run_with_pauses, with_pauses
from tidelog.controller import layout
from tidelog.controller.image import EMPTY_IMAGE, ClusterImage
from tidelog.controller.image_builder import ImageBuilder
from tidelog.controller.ledger import Ledger
from tidelog.metadata.store import MetadataStoreError

TOMBSTONES_MAX: Final = 10_000
"""Tombstones that several brokers keep. One that was down needs them to know which of its files nobody needs;
without them it keeps the files aside."""


@dataclass(frozen=True, slots=True)
class Loaded:
    image: ClusterImage
    garbage: list[str]
    # Topics whose deletion the store remembers; brokers may not have removed all of their files.
    deleted_topics: Mapping[uuid.UUID, str]
    next_producer_id: int


async def load(ledger: Ledger, controller_id: int) -> Loaded:
    """Everything in the store, with pauses: the elected broker keeps serving its clients."""
    cluster = (await ledger.read(layout.CLUSTER)).get(layout.CLUSTER, {})
    if cluster.get("version", layout.LAYOUT_VERSION) > layout.LAYOUT_VERSION:
        raise MetadataStoreError(
            f"the cluster's metadata has layout version {cluster['version']}, written by a newer Tidelog; "
            f"this one reads up to {layout.LAYOUT_VERSION}. Start the newer version."
        )
    builder = ImageBuilder(EMPTY_IMAGE)
    builder.add(layout.CLUSTER, {"id": cluster.get("id", "")})
    emptied = []
    for prefix in (layout.BROKERS, layout.BROKER_CONFIGS, layout.GROUP_CONFIGS, layout.PARTITIONS, layout.TOPICS):
        async for key, record in with_pauses((await ledger.read(prefix)).items()):
            builder.add(key, record)
            if prefix == layout.GROUP_CONFIGS and not record["configs"]:
                emptied.append(key)
    built = await run_with_pauses(builder.build(ledger.elected_rev, controller_id))
    producer_ids = (await ledger.read(layout.PRODUCER_IDS)).get(layout.PRODUCER_IDS, {"next": 0})
    garbage = built.orphans + emptied
    if len(built.image.brokers) < 2 or len(built.deleted_topics) > TOMBSTONES_MAX:
        garbage += [layout.topic_key(name) for name in built.deleted_topics.values()]
    return Loaded(built.image, garbage, built.deleted_topics, producer_ids["next"])
