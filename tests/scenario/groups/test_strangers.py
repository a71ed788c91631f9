"""Clients that ask for much and go away: what they leave behind in the coordinator of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k15_describe_groups import (
    DESCRIBE_GROUPS,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.testing import Broker

if TYPE_CHECKING:
    from tests.scenario.groups.conftest import FormGroup, MakeMember, Member

WaitUntil = Callable[[Callable[[], bool], str], None]


def members(member: Member) -> list[str]:
    request = DescribeGroupsRequest(groups=[member.group])
    [group] = member.client.ask(DESCRIBE_GROUPS, request, DescribeGroupsResponse, 5).groups
    return [row.member_id for row in group.members]


def test_newcomers_that_hang_up_leave_nothing_behind(
    fast_broker: Broker, new_member: MakeMember, form_group: FormGroup, wait_until: WaitUntil
) -> None:
    (member,) = form_group(fast_broker, 1)
    strangers = [new_member(fast_broker) for _ in range(20)]
    for stranger in strangers:
        stranger.protocols = {"range": bytes(200_000)}
        stranger.send_join(version=3)
    wait_until(lambda: len(members(member)) == 21, "all strangers are members")
    for number, stranger in enumerate(strangers):
        if number % 2:
            stranger.client.reset()
        else:
            stranger.client.close()
    wait_until(lambda: members(member) == [member.member_id], "no stranger is a member")
    joined = member.join()
    assert joined.error_code == ErrorCode.NONE
    assert [row.member_id for row in joined.members] == [member.member_id]


def test_a_member_that_says_too_much_is_refused_and_the_group_goes_on(
    fast_broker: Broker, new_member: MakeMember, form_group: FormGroup
) -> None:
    (member,) = form_group(fast_broker, 1)
    stranger = new_member(fast_broker)
    stranger.protocols = {"range": bytes(9_000_000)}
    assert stranger.join(version=3).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert member.heartbeat() == ErrorCode.NONE
