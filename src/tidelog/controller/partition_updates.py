"""Collects the partitions of an image that one change gives new states: their rules, their writes, the new image.

What always holds: a partition that changes several times in one change builds on its newest state; a chunk that holds
changed partitions is written once; topics without a change stay the same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from tidelog.common.settings import Settings
from tidelog.controller import layout
from tidelog.controller.configs import topic_value
from tidelog.controller.elections import Rules
from tidelog.controller.image import ClusterImage, PartitionState, TopicImage
from tidelog.controller.ledger import Write

MIN_ISR_SETTING = "min.insync.replicas"
UNCLEAN_SETTING = "unclean.leader.election.enable"

Step = Callable[[PartitionState, Rules], PartitionState]
"""Makes a partition's next state; the same object where nothing changes."""


class PartitionUpdates:
    """New states of partitions of one image, whose brokers are those after the change."""

    def __init__(self, image: ClusterImage, settings: Settings) -> None:
        self._image = image
        self._settings = settings
        self._active = frozenset(node_id for node_id, broker in image.brokers.items() if broker.is_active)
        self._unfenced = frozenset(node_id for node_id, broker in image.brokers.items() if not broker.fenced)
        self._rules: dict[str, Rules] = {}
        # Most topics have the same settings or none.
        self._known_rules: dict[tuple[str | None, str | None], Rules] = {}
        # The changed partitions by topic name and index.
        self._states: dict[str, dict[int, PartitionState]] = {}

    def rules(self, topic: str) -> Rules:
        """The rules for all partitions of this topic."""
        rules = self._rules.get(topic)
        if rules is None:
            overrides = self._image.topic_configs(topic)
            own = overrides.get(MIN_ISR_SETTING), overrides.get(UNCLEAN_SETTING)
            rules = self._known_rules.get(own)
            if rules is None:
                rules = self._known_rules[own] = self._make_rules(overrides)
            self._rules[topic] = rules
        return rules

    def _make_rules(self, overrides: Mapping[str, str]) -> Rules:
        min_isr, unclean = (
            topic_value(name, overrides, self._image, self._settings) for name in (MIN_ISR_SETTING, UNCLEAN_SETTING)
        )
        return Rules(self._active, self._unfenced, min_isr, unclean)

    def state(self, topic: TopicImage, index: int) -> PartitionState:
        """The newest state of a partition that exists."""
        return self._states.get(topic.name, {}).get(index, topic.partitions[index])

    def update(self, topic: TopicImage, index: int, step: Step) -> PartitionState:
        """Take one step with a partition that exists; returns its state after it."""
        before = self.state(topic, index)
        after = step(before, self.rules(topic.name))
        if after is not before:
            self._states.setdefault(topic.name, {})[index] = after
        return after

    def update_all(
        self, step: Step, *, where: Callable[[PartitionState], bool], topics: Iterable[TopicImage] | None = None
    ) -> None:
        """Take one step with every partition (of these topics; None: of all) for whose state `where` holds."""
        for topic in self._image.topics.values() if topics is None else topics:
            # Partitions of a topic often have equal states, which then share their next one, too.
            known: dict[PartitionState, PartitionState] = {}
            for index in range(len(topic.partitions)):
                before = self.state(topic, index)
                if not where(before):
                    continue
                after = known.get(before)
                if after is None:
                    after = known[before] = step(before, self.rules(topic.name))
                if after != before:
                    self._states.setdefault(topic.name, {})[index] = after

    @property
    def partitions_count(self) -> int:
        """How many partitions change."""
        return sum(len(states) for states in self._states.values())

    def writes(self) -> Iterator[Write]:
        for topic in self._changed_topics():
            indexes = set(self._states[topic.name])
            for key, record in layout.chunk_records(topic.topic_id, topic.partitions, indexes):
                yield Write(key, record)

    def image(self) -> ClusterImage:
        """The image with the new states."""
        return self._image.with_topics(self._changed_topics()) if self._states else self._image

    def _changed_topics(self) -> Iterator[TopicImage]:
        for name, states in self._states.items():
            topic = self._image.topics[name]
            partitions = tuple(states.get(index, state) for index, state in enumerate(topic.partitions))
            yield replace(topic, partitions=partitions)
