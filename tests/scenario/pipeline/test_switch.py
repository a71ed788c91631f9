"""Promotions and rollbacks under traffic, as a stock consumer with `read_committed` sees them."""

from __future__ import annotations

import pytest

import plain_version
from plain_shop import Shop, check_switch, wait_until
from tidelog import Admin, Consumer, Producer, TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.versions.kappa import Kappa
from tidelog.pipeline.versions.registry_rows import Switch, offsets_from_json
from tidelog.pipeline.versions.switching import Step


def _promote(shop: Shop) -> Switch:
    return Kappa(shop.registry, "totals", shop.bootstrap).promote(None, shop.launch, lambda text: None)


def _rollback(shop: Shop) -> Switch:
    kappa = Kappa(shop.registry, "totals", shop.bootstrap)

    def wait(version: int) -> None:
        wait_until(lambda: shop.registry.running("totals", version) and kappa.behind(version).is_caught_up, "near")

    return kappa.rollback(shop.launch, lambda text: None, wait)


def _start_both(shop: Shop) -> None:
    shop.start_orders()
    shop.start_reader()
    shop.host(1, "live")
    shop.wait_for_batches(1, 5)
    shop.host(2, "shadow")
    shop.wait_for_batches(2, 3)


def test_readers_see_exactly_the_changed_keys_and_then_the_new_version(shop: Shop) -> None:
    _start_both(shop)
    switch = _promote(shop)
    assert (switch.outcome, switch.from_version, switch.to_version) == ("done", 1, 2)
    assert shop.registry.live_version("totals") == 2
    shop.wait_for_batches(2, 20)
    shop.stop_orders()
    shop.wait_for_all(2)
    shop.wait_for_reader(shop.expected(2))
    check_switch(shop, switch)
    assert not shop.hosts[1][1].is_alive()
    # Keys that are equal in both are left alone.
    equal = {key for key in shop.expected(1) if int(key[1:]) % 5 in (3, 4)}
    assert equal & {record.key for record in shop.seen}


def test_a_rollback_brings_the_old_version_back_with_the_same_promises(shop: Shop) -> None:
    _start_both(shop)
    promoted = _promote(shop)
    shop.wait_for_batches(2, 20)
    rolled_back = _rollback(shop)
    assert (rolled_back.kind, rolled_back.from_version, rolled_back.to_version) == ("rollback", 2, 1)
    assert shop.registry.live_version("totals") == 1
    shop.stop_orders()
    shop.wait_for_all(1)
    shop.wait_for_reader(shop.expected(1))
    assert promoted.data["token"] != rolled_back.data["token"]
    check_switch(shop, rolled_back)
    with pytest.raises(PipelineError, match="came back by a rollback from version 2"):
        _rollback(shop)


def test_a_third_switch_after_a_rollback(shop: Shop) -> None:
    _start_both(shop)
    _promote(shop)
    _rollback(shop)
    wait_until(lambda: not shop.hosts[2][1].is_alive(), "version 2 to end")
    shop.host(2, "shadow")
    shop.wait_for_batches(2, 1)
    again = _promote(shop)
    shop.stop_orders()
    shop.wait_for_all(2)
    shop.wait_for_reader(shop.expected(2))
    check_switch(shop, again)
    switches = shop.registry.switches("totals")
    assert [(switch.kind, switch.outcome) for switch in switches] == [
        ("promote", "done"),
        ("rollback", "done"),
        ("promote", "done"),
    ]


def test_it_is_refused_until_the_new_version_has_caught_up(shop: Shop) -> None:
    with Producer(bootstrap_servers=shop.bootstrap) as producer:
        for number in range(20_000):
            producer.send_nowait(plain_version.INPUT, b"1", b"k%d" % (number % 40))
    shop.host(1, "live")
    shop.wait_for_all(1)
    file = plain_version.declaring_file(shop.state_dir, 2)
    shop.registry.note_version("totals", 2, file=str(file), source=file.read_text())
    kappa = Kappa(shop.registry, "totals", shop.bootstrap)
    with pytest.raises(PipelineError, match="no version of totals was replayed beside version 1"):
        kappa.promote(None, shop.launch, lambda text: None)
    with pytest.raises(PipelineError, match=r"20,000 rows behind version 1, about 20 s; let it catch up with .*replay"):
        kappa.promote(2, shop.launch, lambda text: None)
    assert shop.registry.switches("totals") == []
    assert shop.registry.running("totals", 1) is not None


def test_without_new_orders_equal_keys_are_left_alone(shop: Shop) -> None:
    shop.start_orders()
    shop.start_reader()
    shop.host(1, "live")
    shop.wait_for_batches(1, 10)
    shop.host(2, "shadow")
    shop.wait_for_batches(2, 2)
    shop.stop_orders()
    shop.wait_for_all(1)
    shop.wait_for_all(2)
    kappa = Kappa(shop.registry, "totals", shop.bootstrap)
    found = kappa.diff(2, samples=100, patience_s=10)
    assert found.is_same_position
    switch = _promote(shop)
    shop.wait_for_reader(shop.expected(2))
    check_switch(shop, switch)
    counts = found.outputs[0].counts
    assert switch.data["outputs"]["totals"] == {
        "added": counts.added,
        "changed": counts.changed,
        "missing": counts.missing,
        "equal": counts.equal,
    }
    written = {record.key for record in shop.seen if record.switch is not None}
    assert written == {sample.key for sample in found.outputs[0].samples}
    assert {int(key[1:]) % 5 for key in written} == {0, 1, 2}
    assert counts.equal == len([key for key in shop.expected(1) if int(key[1:]) % 5 in (3, 4)])


def test_a_promotion_that_was_given_up_leaves_the_old_version_live(shop: Shop) -> None:
    _start_both(shop)
    kappa = Kappa(shop.registry, "totals", shop.bootstrap)

    class Killed(BaseException):
        pass

    def die_before_writing(text: str) -> None:
        if text == Step.WRITE:
            raise Killed

    with pytest.raises(Killed):
        kappa.promote(None, shop.launch, die_before_writing)
    with pytest.raises(PipelineError, match="a promote of totals to version 2 is unfinished"):
        _rollback(shop)
    assert kappa.abandon("promote", shop.launch).outcome == "abandoned"
    shop.wait_for_batches(1, 1)
    shop.stop_orders()
    shop.wait_for_all(1)
    shop.wait_for_all(2)
    shop.wait_for_reader(shop.expected(1))
    assert all(record.switch is None for record in shop.seen)
    assert shop.registry.live_version("totals") == 1


def test_the_output_of_the_old_version_is_kept_in_a_topic_of_its_own(shop: Shop) -> None:
    _start_both(shop)
    switch = _promote(shop)
    old_state = shop.expected(1, offsets_from_json(switch.data["old_offsets"]))
    kept: dict[str, bytes | None] = {}
    with Consumer(bootstrap_servers=shop.bootstrap, isolation_level="read_committed") as consumer:
        partitions = [TopicPartition("totals.v1", number) for number in range(3)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < end for each, end in ends.items()):
            kept.update({record.key.decode(): record.value for record in consumer.poll(1.0)})
    assert kept.keys() == old_state.keys()
    with Admin(bootstrap_servers=shop.bootstrap) as admin:
        from tidelog.client.admin import ConfigResource

        resource = ConfigResource.topic("totals.v1")
        assert admin.describe_configs(resource)[resource]["cleanup.policy"].value == "compact"
        admin.delete_topics("totals.v1").raise_for_errors()
    with pytest.raises(PipelineError, match=r"topic totals.v1, which kept the output of version 1, was deleted"):
        _rollback(shop)


def test_a_rollback_is_refused_when_the_inputs_have_lost_what_the_old_version_needs(shop: Shop) -> None:
    _start_both(shop)
    switch = _promote(shop)
    shop.wait_for_batches(2, 10)
    shop.stop_orders()
    shop.wait_for_all(2)
    stopped = offsets_from_json(switch.data["old_offsets"])[plain_version.INPUT]
    with Admin(bootstrap_servers=shop.bootstrap) as admin:
        admin.delete_records({TopicPartition(plain_version.INPUT, 0): stopped[0] + 1}).raise_for_errors()
    with pytest.raises(PipelineError, match=r"up to offset \d+, but retention has deleted records after that"):
        _rollback(shop)
    assert shop.registry.live_version("totals") == 2
