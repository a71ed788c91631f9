from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.scenario.cli.conftest import Command


def test_topic_settings_are_set_shown_and_returned_to_their_defaults(tidelog: Command, topic: str) -> None:
    assert "all settings have their defaults" in tidelog("configs", "describe", "--topic", topic).ok().text
    changed = tidelog("configs", "set", "--topic", topic, "retention.ms=1000", "cleanup.policy=compact").ok()
    assert changed.text == f"changed 2 settings of topic {topic}\n"
    shown = {row["key"]: row for row in tidelog("configs", "describe", "--topic", topic, "--json").ok().json()}
    assert {key: row["value"] for key, row in shown.items()} == {"retention.ms": "1000", "cleanup.policy": "compact"}
    assert shown["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert not shown["retention.ms"]["read_only"]
    table = tidelog("configs", "describe", "--topic", topic, "retention.ms").ok().text
    assert table.splitlines()[1].split() == ["retention.ms", "1000", "dynamic", "topic", "yes"]
    tidelog("configs", "delete", "--topic", topic, "retention.ms", "cleanup.policy").ok()
    assert tidelog("configs", "describe", "--topic", topic, "--json").ok().json() == []


def test_all_shows_defaults(tidelog: Command, topic: str) -> None:
    rows = tidelog("configs", "describe", "--topic", topic, "--all", "--json").ok().json()
    assert {"retention.ms", "segment.bytes", "compression.type"} <= {row["key"] for row in rows}


def test_validate_only_changes_nothing(tidelog: Command, topic: str) -> None:
    text = tidelog("configs", "set", "--topic", topic, "retention.ms=1", "--validate-only").ok().text
    assert text == f"would change 1 setting of topic {topic}\n"
    assert tidelog("configs", "describe", "--topic", topic, "--json").ok().json() == []


def test_broker_settings(tidelog: Command) -> None:
    rows = tidelog("configs", "describe", "--all-brokers", "--json").ok().json()
    assert rows == []
    tidelog("configs", "set", "--all-brokers", "log.retention.ms=123456").ok()
    rows = tidelog("configs", "describe", "--all-brokers", "--json").ok().json()
    assert [(row["key"], row["value"]) for row in rows] == [("log.retention.ms", "123456")]
    tidelog("configs", "delete", "--all-brokers", "log.retention.ms").ok()
    keys = [row["key"] for row in tidelog("configs", "describe", "--broker", "1", "--all", "--json").ok().json()]
    assert "log.retention.ms" in keys


def test_refusals_are_one_line(tidelog: Command, topic: str) -> None:
    assert "there is no such topic" in tidelog("configs", "describe", "--topic", "not-there").refused()
    assert "INVALID_CONFIG" in tidelog("configs", "set", "--topic", topic, "retention.ms=soon").refused()
    assert "retention.mz" in tidelog("configs", "set", "--topic", topic, "retention.mz=1").refused()
    assert "broker 9 is not in the cluster" in tidelog("configs", "describe", "--broker", "9").refused()


def test_a_setting_that_does_not_exist_is_no_default(tidelog: Command, topic: str) -> None:
    refused = tidelog("configs", "describe", "--topic", topic, "retention.mss").refused()
    assert "has no setting 'retention.mss'; did you mean 'retention.ms'" in refused


def test_group_settings(tidelog: Command) -> None:
    assert "all settings have their defaults" in tidelog("configs", "describe", "--group", "readers").ok().text
    changed = tidelog("configs", "set", "--group", "readers", "consumer.session.timeout.ms=50000").ok()
    assert changed.text == "changed 1 setting of group readers\n"
    (row,) = tidelog("configs", "describe", "--group", "readers", "--json").ok().json()
    assert (row["key"], row["value"], row["source"]) == ("consumer.session.timeout.ms", "50000", "GROUP_CONFIG")
    assert (
        "INVALID_CONFIG" in tidelog("configs", "set", "--group", "readers", "consumer.session.timeout.ms=1").refused()
    )
    tidelog("configs", "delete", "--group", "readers", "consumer.session.timeout.ms").ok()
    assert tidelog("configs", "describe", "--group", "readers", "--json").ok().json() == []


def test_levels_of_loggers(tidelog: Command) -> None:
    name = "tidelog.broker.forwarding"
    before = {row["key"]: row for row in tidelog("configs", "describe", "--broker", "1", "--loggers", "--json").json()}
    assert before[name]["source"] == "DYNAMIC_BROKER_LOGGER_CONFIG"
    changed = tidelog("configs", "set", "--broker", "1", "--loggers", f"{name}=ERROR").ok()
    assert changed.text == "changed 1 setting of broker logger 1\n"
    (row,) = tidelog("configs", "describe", "--broker", "1", "--loggers", name, "--json").ok().json()
    assert row["value"] == "ERROR"
    tidelog("configs", "delete", "--broker", "1", "--loggers", name).ok()
    (row,) = tidelog("configs", "describe", "--broker", "1", "--loggers", name, "--json").ok().json()
    assert row["value"] == before["root"]["value"]
    assert "does not exist" in tidelog("configs", "set", "--broker", "1", "--loggers", "nobody=ERROR").refused()
    assert "--loggers goes with --broker ID" in tidelog("configs", "describe", "--all-brokers", "--loggers").refused(2)
