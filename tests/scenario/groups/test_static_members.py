"""Static members over plain sockets: restarts that nobody notices, and processes that are no longer the instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k13_leave_group import MemberIdentity
from tidelog.testing import Broker

if TYPE_CHECKING:
    from tests.scenario.groups.conftest import FormGroup, MakeMember

INSTANCES = ("one", "two")


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_bounce_moves_nothing(
    fast_broker: Broker, form_group: FormGroup, new_member: MakeMember, version: int
) -> None:
    """Behaviour 50"""
    members = form_group(fast_broker, instances=INSTANCES)
    generation_id = members[0].generation_id
    for number, old in enumerate(members):
        back = new_member(fast_broker, old.instance)
        joined = back.join(version)
        assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, generation_id)
        assert joined.member_id != old.member_id
        assert joined.skip_assignment == (version >= 9 and number == 0)
        assert back.sync().assignment == b"part %d" % number
        assert back.heartbeat() == ErrorCode.NONE
        assert old.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
        assert old.commit() == ErrorCode.FENCED_INSTANCE_ID
        assert old.sync().error_code == ErrorCode.FENCED_INSTANCE_ID
        assert old.join().error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_bounce_holds_after_a_crash_of_the_broker(
    fast_broker: Broker, form_group: FormGroup, new_member: MakeMember
) -> None:
    """Behaviour 50"""
    _, old = form_group(fast_broker, instances=INSTANCES)
    back = new_member(fast_broker, "two")
    back.join()
    fast_broker.crash()
    fast_broker.start()
    for before, error in ((back, ErrorCode.NONE), (old, ErrorCode.FENCED_INSTANCE_ID)):
        after = new_member(fast_broker, "two")
        after.member_id, after.generation_id = before.member_id, before.generation_id
        assert after.heartbeat() == error


def test_instances_are_removed_by_name(fast_broker: Broker, form_group: FormGroup, new_member: MakeMember) -> None:
    """Behaviour 50"""
    one, two = form_group(fast_broker, instances=INSTANCES)
    left = new_member(fast_broker).leave(
        MemberIdentity(group_instance_id="two"), MemberIdentity(group_instance_id="nobody"), version=3
    )
    assert [(told.group_instance_id, told.error_code) for told in left.members] == [
        ("two", ErrorCode.NONE),
        ("nobody", ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_duplicates_in_flight(fast_broker: Broker, form_group: FormGroup, new_member: MakeMember) -> None:
    """Behaviour 50"""
    one, two = form_group(fast_broker, instances=INSTANCES)
    one.send_join()
    two.until_rebalance()
    # The same instance twice, while the other one already waits: the later one is the instance.
    one_again = new_member(fast_broker, "one")
    one_again.send_join()
    assert one.joined().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert two.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    # And a join that its member sends again: the newest is answered, the other one is let go.
    one_again_elsewhere = new_member(fast_broker, "one")
    one_again_elsewhere.send_join()
    assert one_again.joined().error_code == ErrorCode.FENCED_INSTANCE_ID
    two.send_join()
    assert two.joined().generation_id == one_again_elsewhere.joined().generation_id


def test_a_join_that_is_sent_again_on_another_connection(
    fast_broker: Broker, form_group: FormGroup, new_member: MakeMember
) -> None:
    """Behaviour 50"""
    leader, follower = form_group(fast_broker)
    leader.send_join()
    follower.until_rebalance()
    elsewhere = new_member(fast_broker)
    elsewhere.member_id = leader.member_id
    elsewhere.send_join()
    assert leader.joined().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    follower.send_join()
    assert elsewhere.joined().generation_id == follower.joined().generation_id
