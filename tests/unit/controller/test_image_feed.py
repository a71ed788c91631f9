"""What followers of the controller are told gives them its image, whatever they had before."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.steps import run_through
from tidelog.controller import layout
from tidelog.controller.image import EMPTY_IMAGE, BrokerInfo, ClusterImage, PartitionState, TopicImage
from tidelog.controller.image_builder import ImageBuilder
from tidelog.controller.image_feed import SNAPSHOT_IS_GONE, SNAPSHOTS_MAX, ImageFeed, Page
from tidelog.controller.ledger import Written

STATE = PartitionState((1,), (1,), 1)
FIRST = ClusterImage(
    revision=10, cluster_id="c", controller_id=1, brokers={1: BrokerInfo(1, 1, (Endpoint(PLAINTEXT, "host", 9092),))}
)
MANY_BYTES = 1 << 30


def topic(number: int, partitions: int = 3) -> TopicImage:
    return TopicImage(f"t{number}", uuid.UUID(int=number + 1), (STATE,) * partitions)


class Source:
    """A controller's image and its feed."""

    def __init__(self, feed: ImageFeed, image: ClusterImage = FIRST) -> None:
        self.feed = feed
        self.image = image
        feed.start(image, {})

    def create(self, number: int, partitions: int = 3) -> None:
        new = topic(number, partitions)
        records = [
            *layout.chunk_records(new.topic_id, new.partitions),
            (layout.topic_key(new.name), layout.topic_record(new, {})),
        ]
        self._commit(self.image.with_topics([new]), records)

    def delete(self, number: int) -> None:
        old = self.image.topics[f"t{number}"]
        records: list[tuple[str, layout.Record | None]] = [
            (layout.topic_key(old.name), layout.topic_tombstone(old.topic_id)),
            *((key, None) for key, _ in layout.chunk_records(old.topic_id, old.partitions)),
        ]
        self._commit(self.image.with_topics((), [old]), records)

    def _commit(self, image: ClusterImage, records: Sequence[tuple[str, layout.Record | None]]) -> None:
        revision = self.image.revision + 2
        self.image = replace(image, revision=revision)
        values = [(key, None if record is None else layout.encode(record)) for key, record in records]
        self.feed.add(self.image, Written(revision, values))


class Follower:
    """Applies what it is told."""

    def __init__(self, feed: ImageFeed, node_id: int = 2) -> None:
        self.feed = feed
        self.node_id = node_id
        self.image = EMPTY_IMAGE
        self.is_same_epoch = False
        self.deleted: set[uuid.UUID] = set()

    async def read(self, position: int = 0, max_bytes: int = MANY_BYTES, max_wait_s: float = 0) -> Page:
        page = await self.feed.read(
            self.node_id,
            self.image.revision,
            position,
            is_same_epoch=self.is_same_epoch,
            max_bytes=max_bytes,
            max_wait_s=max_wait_s,
        )
        assert page is not None
        return page

    async def catch_up(self, max_bytes: int = MANY_BYTES) -> int:
        """Follow until there is no news; returns the number of pages it took."""
        pages = 0
        while True:
            page = await self.read(max_bytes=max_bytes)
            if not page.changes:
                return pages
            pages += 1
            builder = ImageBuilder(self.image, is_complete=page.is_snapshot)
            self._add(builder, page)
            if page.is_snapshot:
                revision, position = page.revision, len(page.changes)
                while not page.is_complete:
                    continued = await self.feed.read(
                        self.node_id, revision, position, is_same_epoch=True, max_bytes=max_bytes, max_wait_s=0
                    )
                    assert continued is not None
                    page = continued
                    assert (page.revision, page.is_snapshot) == (revision, True)
                    self._add(builder, page)
                    position += len(page.changes)
                    pages += 1
            built = run_through(builder.build(page.revision, 1))
            self.image = built.image
            self.deleted |= set(built.deleted_topics)
            self.is_same_epoch = True

    def _add(self, builder: ImageBuilder, page: Page) -> None:
        for key, value in page.changes:
            builder.add(key, None if value is None else layout.decode(value))


@pytest.mark.parametrize("max_bytes", [1, 2_000, MANY_BYTES])
async def test_a_follower_gets_a_snapshot_and_then_changes(max_bytes: int) -> None:
    feed = ImageFeed()
    source, follower = Source(feed), Follower(feed)
    for number in range(10):
        source.create(number, partitions=100)
    source.delete(3)
    pages = await follower.catch_up(max_bytes)
    assert follower.image == source.image
    assert follower.deleted == {topic(3).topic_id}
    assert (pages > 1) == (max_bytes < MANY_BYTES)
    before = follower.image
    source.create(20)
    source.delete(4)
    page = await follower.read(max_bytes=max_bytes)
    assert not page.is_snapshot
    await follower.catch_up(max_bytes)
    assert follower.image == source.image
    assert follower.image.topics["t5"] is before.topics["t5"]


@pytest.mark.parametrize("seed", range(10))
async def test_any_order_of_changes_elections_and_reads_ends_in_the_same_image(seed: int) -> None:
    rng = random.Random(seed)
    feed = ImageFeed(history_bytes_max=5_000)
    source, followers = Source(feed), [Follower(feed, node_id) for node_id in (2, 3)]
    for number in range(40):
        source.create(number, partitions=rng.choice([1, 70]))
        if rng.random() < 0.3:
            source.delete(rng.choice([topic.topic_id.int - 1 for topic in source.image.topics.values()]))
        if rng.random() < 0.05:
            feed.stop()
            feed.start(source.image, {})
            for follower in followers:
                follower.is_same_epoch = False
        if rng.random() < 0.3:
            await rng.choice(followers).catch_up(rng.choice([1, 1_000, MANY_BYTES]))
    for follower in followers:
        await follower.catch_up()
        assert follower.image == source.image
    assert feed._history_bytes <= 5_000
    assert not feed._snapshots


async def test_a_snapshot_is_of_one_revision_though_changes_come_in_between() -> None:
    feed = ImageFeed()
    source, follower = Source(feed), Follower(feed)
    for number in range(5):
        source.create(number)
    page = await follower.read(max_bytes=1)
    source.delete(4)
    source.create(7)
    follower.image = replace(follower.image, revision=page.revision)
    follower.is_same_epoch = True
    position, keys = len(page.changes), [key for key, _ in page.changes]
    while not page.is_complete:
        page = await follower.read(position, max_bytes=1)
        position += len(page.changes)
        keys += [key for key, _ in page.changes]
    assert layout.topic_key("t4") in keys
    assert layout.topic_key("t7") not in keys


async def test_a_page_that_was_lost_starts_the_snapshot_over() -> None:
    feed = ImageFeed()
    source, follower = Source(feed), Follower(feed)
    for number in range(5):
        source.create(number)
    first = await follower.read(max_bytes=1)
    follower.image = replace(follower.image, revision=first.revision)
    follower.is_same_epoch = True
    await follower.read(len(first.changes), max_bytes=1)
    # Not from its beginning: whoever takes that for the next page would never come to the end.
    assert await follower.read(len(first.changes), max_bytes=1) is SNAPSHOT_IS_GONE
    follower.is_same_epoch = False
    again = await follower.read(max_bytes=1)
    assert again.changes == first.changes


async def test_who_waits_misses_nothing_of_much_that_comes_at_once() -> None:
    """The first of the changes is forgotten before the follower has its turn."""
    feed = ImageFeed(history_bytes_max=600)
    source, follower = Source(feed), Follower(feed)
    await follower.catch_up()
    waiting = asyncio.create_task(follower.read(max_wait_s=60))
    await asyncio.sleep(0)
    for number in range(4):
        source.create(number)
    page = await waiting
    assert page.is_snapshot
    await follower.catch_up()
    assert follower.image == source.image


async def test_reading_waits_for_news_and_for_the_end_of_the_controller() -> None:
    feed = ImageFeed()
    source, follower = Source(feed), Follower(feed)
    await follower.catch_up()
    waiting = asyncio.create_task(follower.read(max_wait_s=60))
    await asyncio.sleep(0)
    assert not waiting.done()
    source.create(1)
    assert (await waiting).revision == source.image.revision
    await follower.catch_up()
    ending = asyncio.create_task(
        feed.read(2, follower.image.revision, 0, is_same_epoch=True, max_bytes=1, max_wait_s=60)
    )
    await asyncio.sleep(0)
    feed.stop()
    feed.start(source.image, {})
    assert await ending is None
    assert (await follower.read(max_wait_s=0.001)).changes == ()


async def test_nothing_is_remembered_before_somebody_follows() -> None:
    feed = ImageFeed()
    source = Source(feed)
    source.create(1)
    assert not feed._history
    await Follower(feed).catch_up()
    source.create(2)
    assert len(feed._history) == 1


async def test_strangers_that_begin_snapshots_take_a_bounded_amount_of_memory() -> None:
    feed = ImageFeed()
    source, follower = Source(feed), Follower(feed)
    for number in range(3):
        source.create(number)
    for node_id in range(100, 100 + 2 * SNAPSHOTS_MAX):
        assert not (await Follower(feed, node_id).read(max_bytes=1)).is_complete
    assert len(feed._snapshots) == SNAPSHOTS_MAX
    # A broker is served beside them, and one whose snapshot was dropped is told so.
    await follower.catch_up(max_bytes=1)
    assert follower.image == source.image
    gone = await feed.read(100, source.image.revision, 1, is_same_epoch=True, max_bytes=1, max_wait_s=0)
    assert gone is SNAPSHOT_IS_GONE
