"""A group that has settings of its own: its members learn them with their next heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.coordinator.config import GroupConfig, GroupConfigs
from tidelog.coordinator.shard import GroupShard

if TYPE_CHECKING:
    from tests.unit.coordinator.consumer.conftest import Bench, Consumer

MakeConsumer = Callable[..., "Consumer"]

GROUP = "group"


def test_settings_change_while_a_group_has_members(bench: Bench, make_consumer: MakeConsumer) -> None:
    own: dict[str, dict[str, int]] = {}
    configs = GroupConfigs(bench.config, lambda group_id: own.get(group_id, {}))
    bench.shard = GroupShard(0, bench.config, bench.topics.copy(), None, configs)
    member = make_consumer(bench, "member", ["orders"])
    answer = bench.ask(member.request())
    assert answer.heartbeat_interval_ms == GroupConfig().group_consumer_heartbeat_interval_ms
    member.epoch = answer.member_epoch

    own[GROUP] = {"group_consumer_heartbeat_interval_ms": 7_000, "group_consumer_session_timeout_ms": 50_000}
    own["another"] = {"group_consumer_heartbeat_interval_ms": 1}
    assert bench.ask(member.request()).heartbeat_interval_ms == 7_000
    own[GROUP] = {**own[GROUP], "group_consumer_heartbeat_interval_ms": 8_000}
    configs.look_up_again()
    assert bench.ask(member.request()).heartbeat_interval_ms == 8_000
    bench.advance(49_999)
    assert bench.shard.state.groups[GROUP].state != "Empty"
    bench.advance(1)
    assert bench.shard.state.groups[GROUP].state == "Empty"

    del own[GROUP]
    configs.look_up_again()
    assert configs.of(GROUP) is bench.config
