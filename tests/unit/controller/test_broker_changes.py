"""What becomes of the cluster's partitions when brokers register, are fenced or shut down, and when leaders ask."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.settings import Settings
from tidelog.common.steps import run_through
from tidelog.controller import changes, layout
from tidelog.controller.changes import Change
from tidelog.controller.image import NO_LEADER, BrokerInfo, ClusterImage, PartitionState, TopicImage
from tidelog.controller.requests import (
    ConfigAlteration,
    ElectionType,
    IsrChange,
    IsrMember,
    NewPartitions,
    NewTopic,
    Reassignment,
)
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource, ResourceType

TOPIC_ID = uuid.UUID(int=7)
OTHER_ID = uuid.UUID(int=8)
DISK, NEW_DISK = uuid.UUID(int=100), uuid.UUID(int=101)


def state(replicas: tuple[int, ...], isr: tuple[int, ...] | None = None, elr: tuple[int, ...] = ()) -> PartitionState:
    isr = replicas if isr is None else isr
    return PartitionState(replicas, isr, isr[0] if isr else NO_LEADER, elr=elr)


def cluster(*partitions: PartitionState, min_isr: int = 2, count: int = 3) -> ClusterImage:
    """A topic of these partitions on brokers 1 to `count`, and one that broker 1 has alone."""
    topic = TopicImage("t", TOPIC_ID, partitions)
    other = TopicImage("other", OTHER_ID, (PartitionState((1,), (1,), 1),))
    brokers = {
        n: BrokerInfo(n, 10 + n, (Endpoint(PLAINTEXT, "host", 9090 + n),), directories=(DISK,))
        for n in range(1, count + 1)
    }
    image = ClusterImage(revision=50, cluster_id="c", controller_id=1, brokers=brokers).with_topics([topic, other])
    return image.with_configs({ConfigResource(ResourceType.TOPIC, "t"): {"min.insync.replicas": str(min_isr)}})


def states(image: ClusterImage) -> Sequence[PartitionState]:
    return image.topics["t"].partitions


def written(change: Change[Any]) -> list[str]:
    """The keys of the writes, which must give the image when they are read back."""
    for write in change.writes:
        assert write.record is not None
        if write.key.startswith(layout.BROKERS):
            broker = layout.parse_broker(write.key, layout.decode(layout.encode(write.record)))
            assert broker == change.image.brokers[broker.node_id]
        else:
            topic = next(t for t in change.image.topics.values() if layout.chunk_key(t.topic_id, 0) == write.key)
            parsed = layout.parse_chunk(layout.decode(layout.encode(write.record)))
            assert tuple(parsed) == topic.partitions
    return [write.key for write in change.writes]


CHUNK, OTHER_CHUNK = layout.chunk_key(TOPIC_ID, 0), layout.chunk_key(OTHER_ID, 0)


def test_a_fenced_broker_loses_what_it_led_and_its_place_in_isrs(settings: Settings) -> None:
    image = cluster(state((1, 2, 3)), state((2, 1, 3)), state((2, 3)))
    change = changes.fence_brokers([1], image, settings)
    assert change.results == [1]
    assert [(each.leader, each.isr) for each in states(change.image)] == [(2, (2, 3)), (2, (2, 3)), (2, (2, 3))]
    assert [each.partition_epoch for each in states(change.image)] == [1, 1, 0]
    assert [each.leader_epoch for each in states(change.image)] == [1, 0, 0]
    assert states(change.image)[2] is states(image)[2]
    assert change.image.topics["other"].partitions[0].elr == (1,)
    assert change.image.brokers[1].fenced
    # The broker is fenced last: whoever takes over halfway starts again.
    assert written(change) == [CHUNK, OTHER_CHUNK, "brokers/1"]


def test_fencing_again_or_somebody_unknown_changes_nothing(settings: Settings) -> None:
    once = changes.fence_brokers([1, 2], cluster(state((1, 2, 3))), settings)
    assert once.results == [1, 2]
    assert (states(once.image)[0].leader, states(once.image)[0].elr) == (3, (1, 2))
    again = changes.fence_brokers([1, 2, 9], once.image, settings)
    assert (again.results, again.writes) == ([], [])
    assert again.image is once.image


def test_a_broker_comes_back_under_a_new_epoch_and_leads_what_waited_for_it(settings: Settings) -> None:
    fenced = changes.fence_brokers([1], cluster(state((1, 2, 3))), settings).image
    broker = replace(fenced.brokers[1], fenced=False)
    change = changes.register_broker(broker, fenced, settings, clean_shutdown=True)
    assert change.image.topics["other"].partitions[0].leader == 1
    assert states(change.image)[0].isr == (2, 3)
    assert change.results > fenced.brokers[1].epoch
    assert change.image.brokers[1] == replace(broker, epoch=change.results)
    assert written(change) == [OTHER_CHUNK, "brokers/1"]


def test_an_epoch_is_new_even_if_nothing_is_known_of_the_broker(settings: Settings) -> None:
    image = cluster(state((1, 2, 3)))
    broker = BrokerInfo(9, -1, (Endpoint(PLAINTEXT, "host", 1),))
    change = changes.register_broker(broker, image, settings, clean_shutdown=False)
    assert change.results > image.revision


def test_a_broker_that_crashed_is_in_no_isr_before_it_counts_as_alive(settings: Settings) -> None:
    image = cluster(state((1, 2, 3)), state((2, 3), isr=(2, 3)))
    change = changes.register_broker(image.brokers[3], image, settings, clean_shutdown=False)
    assert [each.isr for each in states(change.image)] == [(1, 2), (2,)]
    assert [each.elr for each in states(change.image)] == [(), ()]
    assert written(change) == [CHUNK, "brokers/3"]


@pytest.mark.parametrize(
    ("directories", "leader"),
    [((DISK,), 1), ((NEW_DISK, DISK), 1), ((NEW_DISK,), NO_LEADER), ((), 1)],
)
def test_the_last_replica_is_not_trusted_on_new_disks(
    settings: Settings, directories: tuple[uuid.UUID, ...], leader: int
) -> None:
    image = cluster(state((1, 2), isr=(1,)))
    broker = replace(image.brokers[1], directories=directories)
    change = changes.register_broker(broker, image, settings, clean_shutdown=False)
    assert states(change.image)[0].leader == leader
    # Of what it has alone, the broker knows itself which files are missing.
    assert change.image.topics["other"].partitions[0].leader == 1


def test_a_broker_shuts_down_once_it_leads_nothing_that_others_can(settings: Settings) -> None:
    image = cluster(state((1, 2, 3)), state((1, 2), isr=(1,)), state((2, 3)))
    change = changes.shut_down_broker(1, 11, image, settings)
    # Partition 1 waits for replica 2; nobody else has the other topic.
    assert change.results is False
    assert [each.leader for each in states(change.image)] == [2, 1, 2]
    assert change.image.topics["other"].partitions[0].leader == 1
    assert change.image.brokers[1].in_controlled_shutdown
    assert written(change) == ["brokers/1", CHUNK]
    assert list(changes.shut_down_broker(1, 11, change.image, settings).writes) == []
    asked = IsrChange(TOPIC_ID, 1, 0, 0, [IsrMember(1, 11), IsrMember(2, 12)])
    caught_up = changes.alter_partition(1, 11, [asked], change.image, settings)
    assert [result.error for result in caught_up.results] == [ErrorCode.NEW_LEADER_ELECTED]
    assert (states(caught_up.image)[1].leader, states(caught_up.image)[1].elr) == (2, (1,))
    after = changes.shut_down_broker(1, 11, caught_up.image, settings)
    assert (after.results, list(after.writes)) == (True, [])


def test_new_topics_avoid_a_broker_that_shuts_down(settings: Settings) -> None:
    image = changes.shut_down_broker(1, 11, cluster(state((1, 2, 3))), settings).image
    new = [NewTopic("new", 8, 2), NewTopic("given", assignments={0: [1, 2]})]
    change = run_through(changes.create_topics(new, image, settings, now_ms=0))
    assert {node for each in change.image.topics["new"].partitions for node in each.replicas} == {2, 3}
    given = change.image.topics["given"].partitions[0]
    assert (given.replicas, given.isr, given.leader) == ((1, 2), (2,), 2)


def test_a_stopped_broker_may_go_and_a_stranger_is_refused(settings: Settings) -> None:
    image = changes.fence_brokers([1], cluster(state((1, 2, 3))), settings).image
    assert changes.shut_down_broker(1, 11, image, settings).results is True
    for node_id, epoch in ((2, 11), (9, 11)):
        with pytest.raises(KafkaError) as caught:
            changes.shut_down_broker(node_id, epoch, image, settings)
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def isr_change(index: int, *members: int, topic_id: uuid.UUID = TOPIC_ID, partition_epoch: int = 0) -> IsrChange:
    return IsrChange(topic_id, index, 0, partition_epoch, [IsrMember(each, 10 + each) for each in members])


def test_isrs_change_as_their_leader_asks(settings: Settings) -> None:
    image = cluster(state((1, 2, 3)), state((1, 2, 3), isr=(1,)), state((2, 1)))
    asked = [
        isr_change(0, 1, 2),
        isr_change(1, 1, 3),
        isr_change(2, 1),
        isr_change(5, 1),
        isr_change(0, 1, topic_id=uuid.UUID(int=99)),
        # Built on a state that the first one has replaced.
        isr_change(0, 1),
        isr_change(0, 1, partition_epoch=1),
    ]
    change = changes.alter_partition(1, 11, asked, image, settings)
    assert [result.error for result in change.results] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NONE,
    ]
    assert [each.isr for each in states(change.image)] == [(1,), (1, 3), (2, 1)]
    assert [each.elr for each in states(change.image)] == [(2,), (), ()]
    assert change.results[1].state == states(change.image)[1]
    assert written(change) == [CHUNK]


def test_a_leader_with_an_old_epoch_is_refused_as_a_whole(settings: Settings) -> None:
    with pytest.raises(KafkaError) as caught:
        changes.alter_partition(1, 10, [isr_change(0, 1)], cluster(state((1, 2))), settings)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def set_config(resource: ConfigResource, name: str, value: str) -> ConfigAlteration:
    return ConfigAlteration(resource, [ConfigChange(name, AlterOperation.SET, value)])


def test_a_lower_minimum_ends_the_elr_in_the_same_change(settings: Settings) -> None:
    image = cluster(state((1, 2, 3), isr=(1,), elr=(2,)), state((1, 2, 3)))
    topic = ConfigResource(ResourceType.TOPIC, "t")
    change = run_through(changes.alter_configs([set_config(topic, "min.insync.replicas", "1")], image, settings))
    assert [each.elr for each in states(change.image)] == [(), ()]
    assert [write.key for write in change.writes] == [CHUNK, "topics/t"]
    unrelated = run_through(changes.alter_configs([set_config(topic, "retention.ms", "1")], image, settings))
    assert [write.key for write in unrelated.writes] == ["topics/t"]


def test_a_lower_minimum_of_all_brokers_counts_where_no_topic_says_otherwise(settings: Settings) -> None:
    image = cluster(state((1, 2, 3), isr=(1,), elr=(2,)))
    everywhere = ConfigResource(ResourceType.BROKER, "")
    image = run_through(
        changes.alter_configs([set_config(everywhere, "min.insync.replicas", "2")], image, settings)
    ).image
    keep = run_through(changes.alter_configs([set_config(everywhere, "min.insync.replicas", "1")], image, settings))
    assert [each.elr for each in states(keep.image)] == [(2,)]
    inherited = image.with_configs({ConfigResource(ResourceType.TOPIC, "t"): {}})
    change = run_through(
        changes.alter_configs([set_config(everywhere, "min.insync.replicas", "1")], inherited, settings)
    )
    assert [each.elr for each in states(change.image)] == [()]


def test_allowing_unclean_elections_elects_at_once(settings: Settings) -> None:
    image = changes.fence_brokers([1], cluster(state((1, 2), isr=(1,))), settings).image
    assert states(image)[0].leader == NO_LEADER
    topic = ConfigResource(ResourceType.TOPIC, "t")
    change = run_through(
        changes.alter_configs([set_config(topic, "unclean.leader.election.enable", "true")], image, settings)
    )
    assert states(change.image)[0].leader == 2


def test_elections_are_answered_one_by_one(settings: Settings) -> None:
    image = cluster(PartitionState((1, 2), (1, 2), 2), state((1, 2)), PartitionState((3, 1), (1,), 1))
    asked = [("t", 0), ("t", 1), ("t", 2), ("t", 3), ("none", 0)]
    change = changes.elect_leaders(ElectionType.PREFERRED, asked, image, settings)
    assert [(result.topic, result.index, result.error) for result in change.results] == [
        ("t", 0, ErrorCode.NONE),
        ("t", 1, ErrorCode.ELECTION_NOT_NEEDED),
        ("t", 2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        ("t", 3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [each.leader for each in states(change.image)] == [1, 1, 1]
    assert written(change) == [CHUNK]


def test_an_election_for_all_names_those_that_needed_one(settings: Settings) -> None:
    image = cluster(PartitionState((1, 2), (1, 2), 2), state((1, 2)), PartitionState((3, 1), (1,), 1))
    change = changes.elect_leaders(ElectionType.PREFERRED, None, image, settings)
    assert [(result.topic, result.index, result.error) for result in change.results] == [
        ("t", 0, ErrorCode.NONE),
        ("t", 2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ]
    again = changes.elect_leaders(ElectionType.UNCLEAN, None, change.image, settings)
    assert (again.results, list(again.writes)) == ([], [])


def test_leaders_go_back_only_to_brokers_that_miss_too_many(settings: Settings) -> None:
    # Broker 2 misses 1 of its 10 partitions, which is not more than 10 %; broker 3 misses 1 of 2.
    twos = [PartitionState((2, 1), (2, 1), 1), *[state((2, 1))] * 9]
    threes = [PartitionState((3, 1), (3, 1), 1), state((3, 1))]
    change = changes.balance_leaders(cluster(*twos, *threes), settings)
    assert change.results == 1
    assert [each.leader for each in states(change.image)] == [1, *[2] * 9, 3, 3]
    assert changes.balance_leaders(change.image, settings).results == 0
    one_more = cluster(*[PartitionState((2, 1), (2, 1), 1)] * 2, *twos[2:], *threes)
    assert [each.leader for each in states(changes.balance_leaders(one_more, settings).image)] == [*[2] * 10, 3, 3]


def test_leaders_stay_where_the_preferred_one_can_not_lead(settings: Settings) -> None:
    out_of_sync = PartitionState((3, 1), (1,), 1)
    moving = PartitionState((3, 1, 2), (3, 1), 1, adding=(2,), removing=(1,))
    leaderless = PartitionState((3,), (), NO_LEADER, elr=(3,))
    for each in (out_of_sync, moving, leaderless):
        assert changes.balance_leaders(cluster(each), settings).results == 0
    image = cluster(PartitionState((3, 1), (3, 1), 1))
    assert changes.balance_leaders(image, settings).results == 1
    leaving = replace(image.brokers[3], in_controlled_shutdown=True)
    shutting_down = replace(image, brokers={**image.brokers, 3: leaving})
    assert changes.balance_leaders(shutting_down, settings).results == 0


def test_one_balancing_moves_a_thousand_leaders_at_most(settings: Settings) -> None:
    image = cluster(*[PartitionState((3, 1), (3, 1), 1)] * 2_500)
    moved: list[int] = []
    while not moved or moved[-1]:
        change = changes.balance_leaders(image, settings)
        moved.append(change.results)
        image = change.image
    assert moved == [1_000, 1_000, 500, 0]


def test_reassignments_are_answered_one_by_one(settings: Settings) -> None:
    image = cluster(state((1, 2)), state((1, 2)), state((1, 2)), count=4)
    asked = [
        Reassignment("t", 0, [3, 2]),
        Reassignment("t", 1, None),
        Reassignment("t", 2, [2, 1]),
        Reassignment("t", 1, []),
        Reassignment("t", 1, [3, 3]),
        Reassignment("t", 1, [3, 9]),
        Reassignment("t", 3, [3]),
        Reassignment("none", 0, [3]),
    ]
    change = changes.alter_reassignments(asked, image, settings)
    invalid, unknown = ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [result.error for result in change.results] == [
        ErrorCode.NONE,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.NONE,
        *[invalid] * 3,
        *[unknown] * 2,
    ]
    assert [each.replicas for each in states(change.image)] == [(3, 2, 1), (1, 2), (2, 1)]
    assert written(change) == [CHUNK]
    assert change.image.topics["t"].replication_factor == 2
    cancelled = changes.alter_reassignments([Reassignment("t", 0, None)], change.image, settings)
    assert [result.error for result in cancelled.results] == [ErrorCode.NONE]
    assert set(states(cancelled.image)[0].replicas) == {1, 2}


def test_the_replication_factor_may_be_kept_from_changing(settings: Settings) -> None:
    image = cluster(state((1, 2)), count=4)
    asked = [Reassignment("t", 0, replicas) for replicas in ([3], [3, 4, 1], [3, 4], [1, 3], [1, 2, 3], None)]
    change = changes.alter_reassignments(asked, image, settings, allow_factor_change=False)
    refused = ErrorCode.INVALID_REPLICATION_FACTOR
    ok = ErrorCode.NONE
    assert [result.error for result in change.results] == [refused, refused, ok, ok, refused, ok]
    assert states(change.image)[0].replicas == (1, 2)


def test_the_leader_that_completes_its_own_move_away_is_told(settings: Settings) -> None:
    image = changes.alter_reassignments([Reassignment("t", 0, [2, 3])], cluster(state((1, 2))), settings).image
    change = changes.alter_partition(1, 11, [isr_change(0, 1, 2, 3, partition_epoch=1)], image, settings)
    assert [result.error for result in change.results] == [ErrorCode.NEW_LEADER_ELECTED]
    after = states(change.image)[0]
    assert (after.replicas, after.isr, after.leader, after.leader_epoch) == ((2, 3), (2, 3), 2, 1)
    assert written(change) == [CHUNK]


def test_added_partitions_get_as_many_replicas_as_a_moving_topic_will_have(settings: Settings) -> None:
    image = changes.alter_reassignments([Reassignment("t", 0, [3, 4])], cluster(state((1, 2)), count=4), settings).image
    grown = run_through(changes.create_partitions([NewPartitions("t", 2)], image, settings)).image
    assert len(states(grown)[1].replicas) == 2


def test_only_brokers_that_are_gone_are_forgotten(settings: Settings) -> None:
    image = cluster(state((1, 2, 3)))
    for node_id, code in ((9, ErrorCode.BROKER_ID_NOT_REGISTERED), (1, ErrorCode.INVALID_REQUEST)):
        with pytest.raises(KafkaError) as caught:
            changes.unregister_broker(node_id, image)
        assert caught.value.code is code
    image = changes.fence_brokers([1], image, settings).image
    change = changes.unregister_broker(1, image)
    assert set(change.image.brokers) == {2, 3}
    assert [(write.key, write.record) for write in change.writes] == [("brokers/1", None)]
    # Whoever comes by that number next is not taken for the one that has the last copy.
    back = changes.register_broker(replace(image.brokers[1], epoch=-1), change.image, settings, clean_shutdown=True)
    assert back.image.topics["other"].partitions[0].leader == NO_LEADER
