from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tidelog.client.admin import GroupDescription
from tidelog.client.admin.groups import describe_consumer_groups
from tidelog.client.errors import BrokerError
from tidelog.client.network.cluster import Cluster
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages import k15_describe_groups as classic
from tidelog.protocol.messages import k69_consumer_group_describe as new

if TYPE_CHECKING:
    from tests.unit.client.admin.conftest import FakeBrokers


def describe(cluster: Cluster) -> GroupDescription:
    return asyncio.run(describe_consumer_groups(cluster, ["g"], include_history=False))["g"]


def new_answer(code: ErrorCode) -> object:
    row = new.DescribedGroup(error_code=code, group_id="g", group_state="Stable", group_epoch=3)
    return new.ConsumerGroupDescribeResponse(groups=[row])


def classic_answer(state: str = "Stable", *members: classic.DescribedGroupMember) -> object:
    row = classic.DescribedGroup(group_id="g", group_state=state, protocol_type="consumer", members=list(members))
    return classic.DescribeGroupsResponse(groups=[row])


@pytest.mark.parametrize("code", [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION])
def test_a_group_that_is_not_of_the_new_protocol_is_asked_for_as_a_classic_one(
    cluster: Cluster, brokers: FakeBrokers, code: ErrorCode
) -> None:
    brokers.answers = {
        new.CONSUMER_GROUP_DESCRIBE: lambda *_: new_answer(code),
        classic.DESCRIBE_GROUPS: lambda *_: classic_answer(),
    }
    assert describe(cluster).type == "classic"


def test_a_broker_that_does_not_know_the_new_protocol_is_not_asked_for_it(
    cluster: Cluster, brokers: FakeBrokers
) -> None:
    brokers.unsupported = {new.CONSUMER_GROUP_DESCRIBE}
    brokers.answers = {classic.DESCRIBE_GROUPS: lambda *_: classic_answer()}
    assert describe(cluster).type == "classic"


def test_a_group_of_the_new_protocol(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.answers = {new.CONSUMER_GROUP_DESCRIBE: lambda *_: new_answer(ErrorCode.NONE)}
    described = describe(cluster)
    assert (described.type, described.group_epoch, described.history) == ("consumer", 3, None)


def test_a_dead_group_is_none(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.unsupported = {new.CONSUMER_GROUP_DESCRIBE}
    brokers.answers = {classic.DESCRIBE_GROUPS: lambda *_: classic_answer("Dead")}
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        describe(cluster)


def test_an_answer_without_the_group_is_none(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.answers = {
        new.CONSUMER_GROUP_DESCRIBE: lambda *_: new.ConsumerGroupDescribeResponse(),
        classic.DESCRIBE_GROUPS: lambda *_: classic.DescribeGroupsResponse(),
    }
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        describe(cluster)


def test_members_whose_bytes_can_not_be_read_are_shown_without(cluster: Cluster, brokers: FakeBrokers) -> None:
    member = classic.DescribedGroupMember(member_id="m", member_metadata=b"\x01", member_assignment=b"\xff" * 9)
    brokers.unsupported = {new.CONSUMER_GROUP_DESCRIBE}
    brokers.answers = {classic.DESCRIBE_GROUPS: lambda *_: classic_answer("Stable", member)}
    (shown,) = describe(cluster).members
    assert (shown.assignment, shown.subscribed_topics) == (None, [])
