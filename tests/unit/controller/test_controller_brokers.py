"""The controller of several brokers over a store in memory: who leads when they go, stop and come back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.controller import (
    Controller,
    ElectionType,
    IsrChange,
    IsrMember,
    NewTopic,
    PartitionState,
    Reassignment,
)
from tidelog.controller.image import BrokerInfo
from tidelog.metadata.memory import MemoryStore
from tidelog.protocol import ErrorCode, KafkaError

MakeController = Callable[..., Controller]


def broker(node_id: int) -> BrokerInfo:
    return BrokerInfo(node_id, -1, (Endpoint(PLAINTEXT, "host", 9092 + node_id),))


async def started(make_controller: MakeController, store: MemoryStore | None = None) -> Controller:
    """A controller with brokers 0, 1 and 2, and topic t with one partition on 1, 2 and 0, in this order."""
    controller = make_controller(store or MemoryStore(poll_interval_ms=5))
    await controller.start()
    for node_id in range(3):
        await controller.register_broker(broker(node_id), clean_shutdown=True)
    new = NewTopic("t", assignments={0: [1, 2, 0]}, configs={"min.insync.replicas": "2"})
    assert [result.error for result in await controller.create_topics([new])] == [ErrorCode.NONE]
    return controller


def partition(controller: Controller) -> PartitionState:
    state = controller.image.partition("t", 0)
    assert state is not None
    return state


def isr_change(controller: Controller, *members: int) -> IsrChange:
    state = partition(controller)
    isr = [IsrMember(each, controller.image.brokers[each].epoch) for each in members]
    topic_id = controller.image.topics["t"].topic_id
    return IsrChange(topic_id, 0, state.leader_epoch, state.partition_epoch, isr)


async def test_a_partition_outlives_its_leader(make_controller: MakeController) -> None:
    controller = await started(make_controller)
    await controller.fence_brokers([1])
    assert (partition(controller).leader, partition(controller).isr) == (2, (2, 0))
    revision = controller.image.revision
    await controller.fence_brokers([1, 7])
    assert controller.image.revision == revision
    await controller.register_broker(broker(1), clean_shutdown=False)
    epoch = controller.image.brokers[2].epoch
    [result] = await controller.alter_partition(2, epoch, [isr_change(controller, 2, 0, 1)])
    assert result.error is ErrorCode.NONE
    assert result.state == partition(controller)
    [elected] = await controller.elect_leaders(ElectionType.PREFERRED, [("t", 0)])
    assert elected.error is ErrorCode.NONE
    state = partition(controller)
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (1, (2, 0, 1), 2, 3)


async def test_leaders_go_back_by_themselves(make_controller: MakeController) -> None:
    controller = await started(make_controller)
    await controller.shut_down_broker(1, controller.image.brokers[1].epoch)
    assert partition(controller).leader == 2
    await controller.balance_leaders()
    assert partition(controller).leader == 2
    await controller.register_broker(broker(1), clean_shutdown=True)
    await controller.alter_partition(2, controller.image.brokers[2].epoch, [isr_change(controller, 2, 0, 1)])
    await controller.balance_leaders()
    assert partition(controller).leader == 1
    await controller.close()
    await controller.balance_leaders()


async def test_states_and_settings_of_partitions_survive_the_controller(make_controller: MakeController) -> None:
    store = MemoryStore(poll_interval_ms=5)
    controller = await started(make_controller, store)
    await controller.fence_brokers([0, 1])
    before = partition(controller)
    assert (before.isr, before.elr) == ((2,), (1, 0))
    await controller.close()
    again = make_controller(store)
    await again.start()
    assert partition(again) == before


@pytest.mark.parametrize("node_id", [1, 9])
async def test_brokers_with_an_old_epoch_are_refused(make_controller: MakeController, node_id: int) -> None:
    controller = await started(make_controller)
    epoch = controller.image.brokers[1].epoch
    await controller.register_broker(broker(1), clean_shutdown=True)
    with pytest.raises(KafkaError) as caught:
        await controller.alter_partition(node_id, epoch, [isr_change(controller, 1)])
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(KafkaError) as caught:
        await controller.shut_down_broker(node_id, epoch)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


async def test_a_partition_moves_to_another_broker(make_controller: MakeController) -> None:
    store = MemoryStore(poll_interval_ms=5)
    controller = await started(make_controller, store)
    await controller.register_broker(broker(3), clean_shutdown=True)
    [result] = await controller.alter_reassignments([Reassignment("t", 0, [3, 2, 0])])
    assert result.error is ErrorCode.NONE
    await controller.alter_partition(1, controller.image.brokers[1].epoch, [isr_change(controller, 1, 2, 0, 3)])
    state = partition(controller)
    assert (state.replicas, set(state.isr), state.leader, state.is_reassigned) == ((3, 2, 0), {3, 2, 0}, 3, False)
    await controller.fence_brokers([1])
    await controller.unregister_broker(1)
    await controller.close()
    again = make_controller(store)
    await again.start()
    assert partition(again) == state
    assert set(again.image.brokers) == {0, 2, 3}
    epoch = await again.register_broker(broker(1), clean_shutdown=False)
    assert epoch > max(broker.epoch for node_id, broker in again.image.brokers.items() if node_id != 1)


async def test_without_a_controller_elections_are_refused_as_a_whole(make_controller: MakeController) -> None:
    controller = await started(make_controller)
    await controller.close()
    with pytest.raises(KafkaError) as caught:
        await controller.elect_leaders(ElectionType.PREFERRED, None)
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
