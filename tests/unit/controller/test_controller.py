"""The controller over a store in memory: requests, results, images."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import pytest

from tidelog.common import steps
from tidelog.common.clock import VirtualClock
from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.ids import ZERO_UUID, random_uuid
from tidelog.common.settings import Settings
from tidelog.controller import (
    ClusterImage,
    ConfigAlteration,
    ConfigReplacement,
    Controller,
    NewPartitions,
    NewTopic,
    layout,
)
from tidelog.controller import controller as controller_module
from tidelog.controller.controller import PARTITIONS_IN_THREAD_MIN
from tidelog.controller.image import BrokerInfo
from tidelog.metadata.memory import MemoryStore
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource, ResourceType

MakeController = Callable[..., Controller]
BROKER = BrokerInfo(0, -1, (Endpoint(PLAINTEXT, "host", 9092),))


TOPIC = ConfigResource(ResourceType.TOPIC, "a")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(poll_interval_ms=5)


@pytest.fixture
def controller(store: MemoryStore, make_controller: MakeController) -> Controller:
    return make_controller(store)


async def started(controller: Controller) -> Controller:
    await controller.start()
    await controller.register_broker(BROKER, clean_shutdown=True)
    return controller


async def test_the_cluster_id_is_made_once(
    controller: Controller, store: MemoryStore, make_controller: MakeController
) -> None:
    await controller.start()
    cluster_id = controller.image.cluster_id
    assert len(cluster_id) == 22
    await controller.close()
    again = make_controller(store)
    await again.start()
    assert again.image.cluster_id == cluster_id
    assert again.epoch == 2


async def test_a_registered_broker_is_in_the_image(controller: Controller) -> None:
    await controller.start()
    directory = random_uuid()
    epoch = await controller.register_broker(
        BrokerInfo(0, -1, (Endpoint(PLAINTEXT, "host", 9092),), "rack", directories=(directory,)), clean_shutdown=True
    )
    broker = controller.image.brokers[0]
    assert (broker.endpoints, broker.rack, broker.fenced) == (BROKER.endpoints, "rack", False)
    assert (broker.epoch, broker.directories) == (epoch, (directory,))
    assert await controller.register_broker(BROKER, clean_shutdown=True) > epoch


async def test_topics_are_made_independently_of_each_other(controller: Controller) -> None:
    await started(controller)
    new = [NewTopic("a", 2), NewTopic("b", 0), NewTopic("b.c"), NewTopic("b_c"), NewTopic("d"), NewTopic("d")]
    results = await controller.create_topics(new)
    assert [(result.name, result.error) for result in results] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.INVALID_PARTITIONS),
        ("b.c", ErrorCode.NONE),
        ("b_c", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("d", ErrorCode.INVALID_REQUEST),
    ]
    assert list(controller.image.topics) == ["a", "b.c"]
    assert controller.image.topics_by_id == {topic.topic_id: topic for topic in controller.image.topics.values()}
    assert results[0].topic_id == controller.image.topics["a"].topic_id != ZERO_UUID
    assert (results[0].partitions, results[0].replication_factor) == (2, 1)


async def test_validation_alone_changes_nothing(controller: Controller, store: MemoryStore) -> None:
    await started(controller)
    await controller.create_topics([NewTopic("a")])
    before, image = await store.list(""), controller.image
    (result,) = await controller.create_topics([NewTopic("b", 5)], validate_only=True)
    assert (result.error, result.partitions) == (ErrorCode.NONE, 5)
    # As in Kafka: the id that it would have got, if it were created now.
    assert result.topic_id != ZERO_UUID
    (exists,) = await controller.create_topics([NewTopic("a")], validate_only=True)
    assert exists.error is ErrorCode.TOPIC_ALREADY_EXISTS
    await controller.create_partitions([NewPartitions("a", 9)], validate_only=True)
    await controller.alter_configs([ConfigReplacement(TOPIC, {"retention.ms": "1"})], validate_only=True)
    assert await store.list("") == before
    assert controller.image is image


async def test_too_many_partitions_over_all_topics_of_a_request_are_refused(controller: Controller) -> None:
    await started(controller)
    results = await controller.create_topics([NewTopic("a", 6_000), NewTopic("b", 6_000)], validate_only=True)
    assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


async def test_partitions_beyond_the_limit_are_refused(controller: Controller, settings: Settings) -> None:
    settings.set("tidelog.max.partitions", 10, "test")
    await started(controller)
    results = await controller.create_topics([NewTopic("a", 6), NewTopic("b", 5), NewTopic("c", 4)])
    assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
    assert "tidelog.max.partitions=10" in (results[1].message or "")
    assert controller.image.partitions_count == 10
    (grown,) = await controller.create_partitions([NewPartitions("a", 7)])
    assert grown.error is ErrorCode.POLICY_VIOLATION
    # What the brokers keep for themselves is not in the way of a limit for clients.
    (internal,) = await controller.create_topics([NewTopic("__consumer_offsets", 50)])
    assert internal.error is ErrorCode.NONE
    await controller.delete_topics(["c", "__consumer_offsets"])
    assert controller.image.partitions_count == 6
    (grown,) = await controller.create_partitions([NewPartitions("a", 10)])
    assert grown.error is ErrorCode.NONE
    assert controller.image.partitions_count == 10


async def test_a_topic_made_again_has_a_new_id_and_none_of_the_old_settings(controller: Controller) -> None:
    await started(controller)
    await controller.create_topics([NewTopic("a", configs={"retention.ms": "5"})])
    old = controller.image.topics["a"]
    (deleted,) = await controller.delete_topics(["a"])
    assert (deleted.error, deleted.topic_id) == (ErrorCode.NONE, old.topic_id)
    assert controller.image.topics == {}
    assert controller.image.configs == {}
    await controller.create_topics([NewTopic("a")])
    assert controller.image.topics["a"].topic_id != old.topic_id
    assert old.topic_id not in controller.image.topics_by_id
    assert controller.image.topic_configs("a") == {}


async def test_topics_are_deleted_by_name_or_id(controller: Controller) -> None:
    await started(controller)
    await controller.create_topics([NewTopic(name) for name in "abc"])
    b_id, stranger = controller.image.topics["b"].topic_id, uuid.UUID(int=99)
    results = await controller.delete_topics(["a", b_id, "x", stranger, "c", "c"])
    assert [(result.name, result.error) for result in results] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.NONE),
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ("c", ErrorCode.INVALID_REQUEST),
        ("c", ErrorCode.INVALID_REQUEST),
    ]
    assert results[3].topic_id == stranger
    assert list(controller.image.topics) == ["c"]


async def test_a_deleted_name_may_collide_no_more(controller: Controller) -> None:
    await started(controller)
    await controller.create_topics([NewTopic("a.b")])
    await controller.delete_topics(["a.b"])
    (result,) = await controller.create_topics([NewTopic("a_b")])
    assert result.error is ErrorCode.NONE


async def test_a_deleted_topic_leaves_a_tombstone_until_the_next_election(
    controller: Controller, store: MemoryStore, make_controller: MakeController
) -> None:
    await started(controller)
    await controller.create_topics([NewTopic("a", 100)])
    await controller.delete_topics(["a"])
    assert list(await store.list("topics/")) == ["topics/a"]
    assert await store.list("partitions/") == {}
    await controller.close()
    again = make_controller(store)
    await again.start()
    assert await store.list("topics/") == {}
    assert again.image.topics == {}


async def test_settings_of_groups_are_kept_and_emptied_ones_go_at_the_next_election(
    controller: Controller, store: MemoryStore, make_controller: MakeController
) -> None:
    await started(controller)
    name, groups = "consumer.assignment.interval.ms", ("a/ group\n", "g" * 1000)
    for group_id in groups:
        change = ConfigChange(name, AlterOperation.SET, "7")
        (result,) = await controller.incremental_alter_configs(
            [ConfigAlteration(ConfigResource.group(group_id), [change])]
        )
        assert result.error is ErrorCode.NONE
    assert [dict(controller.image.group_configs(group_id)) for group_id in groups] == [{name: "7"}] * 2
    (result,) = await controller.incremental_alter_configs(
        [ConfigAlteration(ConfigResource.group(groups[0]), [ConfigChange(name, AlterOperation.DELETE)])]
    )
    assert result.error is ErrorCode.NONE
    assert len(await store.list("configs/group/")) == 2
    await controller.close()
    again = make_controller(store)
    await again.start()
    assert len(await store.list("configs/group/")) == 1
    assert [dict(again.image.group_configs(group_id)) for group_id in groups] == [{}, {name: "7"}]


async def test_partitions_grow_one_row_a_topic(controller: Controller) -> None:
    await started(controller)
    await controller.create_topics([NewTopic("a", 60), NewTopic("b", 2)])
    before = controller.image.topics["a"]
    asked = [NewPartitions("a", 200), NewPartitions("b", 1), NewPartitions("x", 3), NewPartitions("b", 1)]
    results = await controller.create_partitions(asked)
    assert [(result.name, result.error) for result in results] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.INVALID_REQUEST),
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    after = controller.image.topics["a"]
    assert len(after.partitions) == 200
    assert after.partitions[:60] == before.partitions
    assert after.topic_id == before.topic_id
    (shrunk,) = await controller.create_partitions([NewPartitions("a", 10)])
    assert shrunk.error is ErrorCode.INVALID_PARTITIONS


async def test_settings_are_changed_and_seen_in_the_image(controller: Controller) -> None:
    await started(controller)
    await controller.create_topics([NewTopic("a")])
    set_ms = [ConfigChange("retention.ms", AlterOperation.SET, "5")]
    bad = ConfigResource(ResourceType.TOPIC, "x")
    results = await controller.incremental_alter_configs(
        [ConfigAlteration(TOPIC, set_ms), ConfigAlteration(bad, set_ms)]
    )
    assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert controller.image.topic_configs("a") == {"retention.ms": "5"}
    brokers = ConfigResource(ResourceType.BROKER, "")
    replacements = [
        ConfigReplacement(TOPIC, {"segment.bytes": "9"}),
        ConfigReplacement(brokers, {"log.retention.ms": "1"}),
    ]
    await controller.alter_configs(replacements)
    assert controller.image.topic_configs("a") == {"segment.bytes": "9"}
    assert controller.image.broker_configs(None) == {"log.retention.ms": "1"}
    await controller.alter_configs([ConfigReplacement(TOPIC, {})])
    assert TOPIC not in controller.image.configs


async def test_a_resource_stands_once_in_a_request(controller: Controller) -> None:
    await started(controller)
    await controller.create_topics([NewTopic("a")])
    (result,) = await controller.alter_configs([ConfigReplacement(TOPIC, {}), ConfigReplacement(TOPIC, {})])
    assert result.error is ErrorCode.INVALID_REQUEST


async def test_subscribers_see_every_image_in_order(controller: Controller) -> None:
    seen: list[tuple[ClusterImage, ClusterImage]] = []
    unsubscribe = controller.view.subscribe(lambda old, new: seen.append((old, new)))
    await started(controller)
    await asyncio.gather(*(controller.create_topics([NewTopic(f"t{n}")]) for n in range(10)))
    assert [old for old, _ in seen[1:]] == [new for _, new in seen[:-1]]
    revisions = [new.revision for _, new in seen]
    assert revisions == sorted(set(revisions))
    assert len(seen[-1][1].topics) == 10
    unsubscribe()
    count = len(seen)
    await controller.delete_topics(["t0"])
    assert len(seen) == count


async def test_what_did_not_change_is_the_same_object(controller: Controller) -> None:
    await started(controller)
    await controller.create_topics([NewTopic("a"), NewTopic("b")])
    before = controller.image.topics["a"]
    await controller.create_partitions([NewPartitions("b", 9)])
    assert controller.image.topics["a"] is before


async def test_a_start_renews_every_leadership(controller: Controller) -> None:
    await started(controller)
    await controller.create_topics([NewTopic("big", 5_000), *(NewTopic(f"t{n}", 1) for n in range(300))])
    await controller.register_broker(BROKER, clean_shutdown=False)
    for topic in controller.image.topics.values():
        assert {(state.leader, state.leader_epoch, state.partition_epoch) for state in topic.partitions} == {(0, 1, 1)}


async def test_producer_ids_come_in_blocks_that_never_overlap(
    controller: Controller, store: MemoryStore, make_controller: MakeController
) -> None:
    await controller.start()
    blocks = [await controller.allocate_producer_ids(), await controller.allocate_producer_ids()]
    await controller.close()
    again = make_controller(store)
    await again.start()
    blocks.append(await again.allocate_producer_ids())
    assert blocks == [range(1000), range(1000, 2000), range(2000, 3000)]


async def test_a_cancelled_caller_leaves_store_and_image_in_step(controller: Controller) -> None:
    await started(controller)
    for n in range(5):
        call = asyncio.create_task(controller.create_topics([NewTopic(f"t{n}")]))
        await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
    (result,) = await controller.create_topics([NewTopic("last")])
    assert result.error is ErrorCode.NONE
    assert controller.is_active


async def test_a_closed_controller_answers_not_controller(controller: Controller) -> None:
    await started(controller)
    await controller.close()
    (result,) = await controller.create_topics([NewTopic("a")])
    assert (result.error, result.topic_id) == (ErrorCode.NOT_CONTROLLER, ZERO_UUID)
    with pytest.raises(KafkaError) as caught:
        await controller.allocate_producer_ids()
    assert caught.value.code is ErrorCode.NOT_CONTROLLER


async def test_a_fenced_broker_stays_fenced_and_gets_replicas_only_if_need_be(
    controller: Controller, store: MemoryStore, make_controller: MakeController
) -> None:
    await started(controller)
    await controller.register_broker(BrokerInfo(1, -1, (Endpoint(PLAINTEXT, "other", 9093),)), clean_shutdown=True)
    await controller.fence_brokers([1])
    await controller.close()
    again = make_controller(store)
    await again.start()
    assert {node_id: broker.fenced for node_id, broker in again.image.brokers.items()} == {0: False, 1: True}
    await again.create_topics([NewTopic("a", 6, 1), NewTopic("b", 1, 2)])
    assert {state.replicas for state in again.image.topics["a"].partitions} == {(0,)}
    (state,) = again.image.topics["b"].partitions
    assert (state.replicas, state.isr) == ((0, 1), (0,))


async def test_writes_touch_only_what_changed(controller: Controller, store: MemoryStore) -> None:
    await started(controller)
    await controller.create_topics([NewTopic("a", 1_000), NewTopic("b", 1_000)])
    before = {key: rec.token for key, rec in (await store.list("")).items()}
    await controller.create_partitions([NewPartitions("a", 1_001)])
    after = {key: rec.token for key, rec in (await store.list("")).items()}
    a_id = controller.image.topics["a"].topic_id
    changed = {key for key in after if after[key] != before.get(key)}
    assert changed == {layout.topic_key("a"), layout.chunk_key(a_id, 1_000 // 64)}


class ThreadNotingClock(VirtualClock):
    """Notes which thread asks for the time, as the plan of a new topic does."""

    def __init__(self) -> None:
        super().__init__(1_000_000)
        self.threads: list[int] = []

    def now_ms(self) -> int:
        self.threads.append(threading.get_ident())
        return super().now_ms()


async def test_changes_of_large_clusters_are_computed_in_a_thread(
    store: MemoryStore, settings: Settings, closing: AsyncExitStack
) -> None:
    clock = ThreadNotingClock()
    controller = Controller(store, clock, settings, node_id=0, session_ttl_ms=60_000)
    closing.push_async_callback(controller.close)
    await started(controller)
    own = threading.get_ident()
    (result,) = await controller.create_topics([NewTopic("a", PARTITIONS_IN_THREAD_MIN - 1, 1)])
    assert result.error is ErrorCode.NONE
    assert set(clock.threads) == {own}
    clock.threads.clear()
    # So is one that makes many.
    (result,) = await controller.create_topics([NewTopic("c", PARTITIONS_IN_THREAD_MIN, 1)], validate_only=True)
    assert result.error is ErrorCode.NONE
    assert own not in clock.threads
    (grown,) = await controller.create_partitions([NewPartitions("a", PARTITIONS_IN_THREAD_MIN)])
    assert grown.error is ErrorCode.NONE
    clock.threads.clear()
    # What is refused there is refused here.
    first, second = await controller.create_topics([NewTopic("b", 1, 1), NewTopic("a", 1, 1)])
    assert (first.error, second.error) == (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    assert own not in clock.threads
    assert controller.image.partitions_count == PARTITIONS_IN_THREAD_MIN + 1
    with pytest.raises(KafkaError) as caught:
        await controller.unregister_broker(77)
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


async def test_changes_of_thousands_of_topics_let_others_have_their_turn(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their plans pause, here after each step, and what they come to is made known in parts."""
    monkeypatch.setattr(steps, "_PAUSE_AFTER_S", -1.0)
    monkeypatch.setattr(controller_module, "PARTITIONS_IN_THREAD_MIN", 1_000_000)
    await started(controller)
    names = [f"topic-{number}" for number in range(1_200)]
    turns = 0
    changed: list[int] = []

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def count(old: ClusterImage, new: ClusterImage) -> None:
        both = old.topics.keys() | new.topics.keys()
        changed.append(
            sum(
                old.topics.get(name) is not new.topics.get(name) or old.topic_configs(name) != new.topic_configs(name)
                for name in both
            )
        )

    end = controller.view.subscribe(count)
    ticker = asyncio.create_task(take_turns())
    retention = [ConfigChange("retention.ms", AlterOperation.SET, "5")]
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    for change in (
        lambda: controller.create_topics([NewTopic(name, 1) for name in names]),
        lambda: controller.create_partitions([NewPartitions(name, 2) for name in names]),
        lambda: controller.incremental_alter_configs([ConfigAlteration(each, retention) for each in resources]),
        lambda: controller.alter_configs([ConfigReplacement(each, {"retention.ms": "6"}) for each in resources]),
        lambda: controller.delete_topics(names),
    ):
        turns = 0
        changed.clear()
        results = await change()
        assert {result.error for result in results} == {ErrorCode.NONE}
        assert turns > len(names)
        assert sum(changed) == len(names)
        assert max(changed) <= 500
    assert not controller.image.topics
    assert controller.view.image is controller.image
    ticker.cancel()
    end()
