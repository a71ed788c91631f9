"""What strangers can make the coordinator of classic groups remember: all of it is bounded, or goes with them."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from tidelog.coordinator.config import GroupConfig
from tidelog.coordinator.memory import GroupMemory
from tidelog.coordinator.shard import GroupShard
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k13_leave_group import MemberIdentity

if TYPE_CHECKING:
    from tests.unit.coordinator.classic.conftest import Coordinator

MB = 1_000_000


def test_a_member_that_never_was_answered_goes_with_its_connection(coordinator: Coordinator) -> None:
    for version in (3, 9):
        member_id = "" if version < 4 else coordinator.new_id()
        exchange = coordinator.join(member_id, version=version)
        assert coordinator.is_waiting(exchange)
        coordinator.abandon(exchange)
        coordinator.advance(3_000)
        assert not coordinator.has_group
    assert coordinator.log == []
    assert set(coordinator.timers) == {("", "offset-expiration")}
    assert coordinator.shard.state.memory.used_bytes == 0


def test_others_do_not_wait_for_a_newcomer_whose_connection_is_gone(coordinator: Coordinator) -> None:
    (member,) = coordinator.form(1)
    newcomer = coordinator.join(coordinator.new_id())
    coordinator.abandon(newcomer)
    again = coordinator.join(member)
    answer = coordinator.joined(again)
    assert (answer.error_code, [row.member_id for row in answer.members]) == (ErrorCode.NONE, [member])


def test_a_member_that_was_answered_before_keeps_its_session(coordinator: Coordinator) -> None:
    members = coordinator.form(2)
    exchange = coordinator.join(members[1], protocols={"range": b"other"})
    assert coordinator.is_waiting(exchange)
    coordinator.abandon(exchange)
    assert members[1] in coordinator.group.members
    # Its join counts, so that the others need not wait; it is told its generation when it joins again.
    answer = coordinator.joined(coordinator.join(members[0]))
    assert answer.error_code == ErrorCode.NONE
    assert {row.member_id for row in answer.members} == set(members)
    again = coordinator.joined(coordinator.join(members[1], protocols={"range": b"other"}))
    assert (again.error_code, again.generation_id) == (ErrorCode.NONE, answer.generation_id)


def test_a_join_that_was_sent_again_survives_the_end_of_the_first_connection(coordinator: Coordinator) -> None:
    member_id = coordinator.new_id()
    first = coordinator.join(member_id)
    second = coordinator.join(member_id)
    assert coordinator.joined(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.abandon(first)
    coordinator.advance(3_000)
    assert coordinator.joined(second).error_code == ErrorCode.NONE


def test_names_of_protocols_are_forgotten_with_their_members(coordinator: Coordinator) -> None:
    (member,) = coordinator.form(1)
    tracemalloc.start()
    try:
        for number in range(20):
            protocols = {"range": b""} | {f"{number} {index} ".ljust(500): b"" for index in range(1_000)}
            other = coordinator.new_id()
            joins = [coordinator.join(other, protocols=protocols), coordinator.join(member)]
            coordinator.finish_rebalance(joins)
            coordinator.leave(MemberIdentity(member_id=other))
            coordinator.finish_rebalance([coordinator.join(member)])
            coordinator.log.clear()
            coordinator.answers.clear()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * MB, "20 members had 0.5 MB of names each"


def test_a_group_has_room_for_so_much_and_its_members_keep_theirs(new_coordinator: type[Coordinator]) -> None:
    coordinator = new_coordinator(GroupConfig(tidelog_group_max_bytes=100_000), {"t": 4})
    large, small = {"range": bytes(60_000)}, {"range": bytes(100)}
    first, second = coordinator.new_id(), coordinator.new_id()
    joins = [coordinator.join(first, protocols=large)]
    refused = coordinator.join(second, protocols=large)
    assert coordinator.joined(refused).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    joins.append(coordinator.join(second, protocols=small))
    coordinator.finish_rebalance(joins)
    # Whoever is a member may say the same again, or less, and not more.
    grown = coordinator.join(second, protocols=large)
    assert coordinator.joined(grown).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    joins = [coordinator.join(first, protocols=large), coordinator.join(second, protocols=small)]
    coordinator.finish_rebalance(joins)
    coordinator.leave(MemberIdentity(member_id=first))
    coordinator.finish_rebalance([coordinator.join(second, protocols=large)])


def test_one_huge_join_is_refused_before_anything_is_kept(coordinator: Coordinator) -> None:
    refused = coordinator.join(version=3, protocols={"range": bytes(9 * MB)})
    assert coordinator.joined(refused).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not coordinator.has_group


def test_all_groups_together_have_room_for_so_much(new_coordinator: type[Coordinator]) -> None:
    config = GroupConfig(tidelog_group_coordinator_max_bytes=400_000)
    coordinator = new_coordinator(config, {"t": 4})
    codes = []
    for number in range(8):
        exchange = coordinator.join(group=f"group {number}", version=3, protocols={"range": bytes(90_000)})
        codes.append(None if coordinator.is_waiting(exchange) else coordinator.joined(exchange).error_code)
    assert codes == [None] * 4 + [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 4
    assert coordinator.shard.state.memory.budget.used_bytes <= 400_000
    coordinator.advance(2_000_000)  # nobody syncs, so all sessions end
    exchange = coordinator.join(group="another", version=3, protocols={"range": bytes(90_000)})
    assert coordinator.is_waiting(exchange)


def test_shards_share_the_memory_and_give_it_back(new_coordinator: type[Coordinator]) -> None:
    memory = GroupMemory(1 * MB, 1 * MB)
    coordinator = new_coordinator(GroupConfig(), {"t": 4})
    coordinator.form(3)
    coordinator.new_id()
    for number in range(2):
        shard = GroupShard(0, GroupConfig(), coordinator.image, memory)
        for offset, record in enumerate(coordinator.log):
            shard.replay(record, offset)
        assert memory.groups.used_bytes == number * shard.state.memory.used_bytes, "it is loaded in a thread"
        list(shard.on_loaded(coordinator.now))
    assert memory.groups.used_bytes == 2 * shard.state.memory.used_bytes > 0
    shard.on_unloaded(ErrorCode.NOT_COORDINATOR)
    assert memory.groups.used_bytes == shard.state.memory.used_bytes
    coordinator.unload()
    assert coordinator.shard.state.memory.budget.used_bytes == 0


def test_the_oldest_ids_that_nobody_used_are_forgotten(new_coordinator: type[Coordinator]) -> None:
    config = GroupConfig(tidelog_group_coordinator_max_bytes=4 * MB)
    coordinator = new_coordinator(config, {"t": 4})
    first = coordinator.joined(coordinator.join(group="first")).member_id
    for number in range(300):
        answer = coordinator.joined(coordinator.join(group=f"{number}".ljust(8_000), client_id="c" * 32_000))
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    latest, state = answer.member_id, coordinator.shard.state
    assert len(state.pending_ids) <= 1 * MB // 40_000
    assert len(state.groups) == len(state.pending_ids)
    assert len(coordinator.timers) == len(state.pending_ids) + 1
    assert coordinator.joined(coordinator.join(first, group="first")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.is_waiting(coordinator.join(latest, group=f"{299}".ljust(8_000), client_id="c" * 32_000))


def test_a_rebalance_goes_on_without_an_id_that_was_forgotten(new_coordinator: type[Coordinator]) -> None:
    coordinator = new_coordinator(GroupConfig(tidelog_group_coordinator_max_bytes=4 * MB), {"t": 4})
    (member,) = coordinator.form(1)
    coordinator.new_id()
    join = coordinator.join(member, protocols={"range": b"other"})
    assert coordinator.is_waiting(join), "whoever has the new id is waited for"
    for number in range(30):
        coordinator.join(group=f"{number}", client_id="c" * 60_000)
    assert coordinator.joined(join).error_code == ErrorCode.NONE


@pytest.mark.parametrize("field", ["client_id", "reason"])
def test_the_history_keeps_the_beginning_of_long_texts(coordinator: Coordinator, field: str) -> None:
    member = coordinator.joined(coordinator.join(client_id="c" * 32_000)).member_id
    coordinator.finish_rebalance([coordinator.join(member, client_id="c" * 32_000, reason="r" * 32_000)])
    (rebalance,) = coordinator.group.history
    text = getattr(rebalance.trigger, field)
    assert text == field[0] * 200
    assert rebalance.trigger.member_id == member[-200:]
