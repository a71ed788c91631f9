"""Which partitions should go back to their preferred leaders: those of brokers that lead too few of theirs.

What always holds: a pure function of the image. Only partitions are named whose preferred leader could take over at
once, and none that are being moved, whose preferred leader may be on its way out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tidelog.controller.image import NO_LEADER, ClusterImage, TopicImage


def imbalanced_partitions(image: ClusterImage, percentage_max: int) -> Iterator[tuple[TopicImage, int]]:
    """Partitions of every broker that should lead them, where it does not lead more than this share of its own."""
    owned: Counter[int] = Counter()
    led_by_others: Counter[int] = Counter()
    for topic in image.topics.values():
        for state in topic.partitions:
            owned[state.replicas[0]] += 1
            if state.leader not in (state.replicas[0], NO_LEADER):
                led_by_others[state.replicas[0]] += 1
    imbalanced = {
        node_id
        for node_id, count in led_by_others.items()
        if count * 100 > owned[node_id] * percentage_max
        and node_id in image.brokers
        and image.brokers[node_id].is_active
    }
    if not imbalanced:
        return
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            preferred = state.replicas[0]
            if (
                preferred in imbalanced
                and state.leader not in (preferred, NO_LEADER)
                and preferred in state.isr
                and not state.is_reassigned
            ):
                yield topic, index
