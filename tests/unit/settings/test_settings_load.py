"""Files, environment and command line: their ranks, their forms, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.common.settings import SettingError
from tidelog.server.settings_load import load


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_set_gives_the_defaults() -> None:
    settings = load(None, {}, [])
    assert settings["num.partitions"] == 1
    assert settings["listeners"] == ["PLAINTEXT://127.0.0.1:9092"]
    assert settings.values == {}


def test_command_line_outranks_environment_outranks_file(tmp_path: Path) -> None:
    path = write(tmp_path, "broker.properties", "num.partitions=2\nnode.id=2\nlog.segment.bytes=2000000\nbroker.rack=a")
    environ = {
        "TIDELOG_NUM_PARTITIONS": "3",
        "TIDELOG_NODE_ID": "3",
        "TIDELOG_LOG_SEGMENT_BYTES": "3000000",
        "HOME": "/",
    }
    settings = load(path, environ, ["num.partitions=4", "node.id=4"], options={"num.partitions": 5})
    assert settings["num.partitions"] == 5
    assert settings["node.id"] == 4
    assert settings["log.segment.bytes"] == 3_000_000
    assert settings["broker.rack"] == "a"
    assert settings.origins == {
        "num.partitions": "command line",
        "node.id": "command line",
        "log.segment.bytes": "environment",
        "broker.rack": "broker.properties",
    }


TOML = """
"max.connections.per.ip" = 7
max.connections = 9
auto.create.topics.enable = false
log.dirs = ["/a", "/b"]

[log.retention]
ms = -1

[log.cleaner]
min.cleanable.ratio = 0.25
"""


@pytest.mark.parametrize("name", ["broker.toml", "broker.conf"])
def test_toml_with_tables_and_dotted_names(tmp_path: Path, name: str) -> None:
    settings = load(write(tmp_path, name, TOML))
    assert settings["max.connections.per.ip"] == 7
    assert settings["max.connections"] == 9
    assert settings["auto.create.topics.enable"] is False
    assert settings["log.dirs"] == ["/a", "/b"]
    assert settings["log.retention.ms"] == -1
    assert settings["log.cleaner.min.cleanable.ratio"] == 0.25


@pytest.mark.parametrize("name", ["server.properties", "server.conf"])
def test_properties_as_kafka_writes_them(tmp_path: Path, name: str) -> None:
    text = "# Kafka\nlisteners=PLAINTEXT://:9092\nlog.dirs=/a,\\\n  /b\nlog.retention.hours=168\n"
    settings = load(write(tmp_path, name, text))
    assert settings["listeners"] == ["PLAINTEXT://:9092"]
    assert settings["log.dirs"] == ["/a", "/b"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.properties",
            "node.id=1\n\nnum.partition=3",
            "a.properties:3: unknown broker setting 'num.partition'; did you",
        ),
        ("a.properties", "num.partitions=x", "a.properties:1: num.partitions=x: expected a whole number"),
        ("a.properties", "broker.rack=\\u12", "a.properties:1: \\u needs four hexadecimal digits"),
        ("a.toml", "[num]\npartitions = 0", "a.toml:2: num.partitions=0: expected 1 or more"),
        ("a.toml", '"num.partition" = 1', "a.toml:1: unknown broker setting 'num.partition'"),
        ("a.toml", "node.id = ", "a.toml: Invalid value (at"),
        ("a.toml", "retention.ms = 5", "it is a topic setting, whose default for all topics is 'log.retention.ms'"),
        ("a.toml", "node.id = true", "expected a whole number"),
        ("a.toml", "node.id = [1]", "expected a whole number"),
    ],
)
def test_mistakes_in_a_file_are_named_with_their_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(write(tmp_path, name, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="No such file"):
        load(tmp_path / "nowhere.toml")
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="not a text file in UTF-8"):
        load(tmp_path / "binary.conf")
    with pytest.raises(SettingError, match="Is a directory"):
        load(tmp_path)


def test_an_unknown_variable_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        SettingError, match="TIDELOG_NUM_PARTITION does not name a setting; did you mean TIDELOG_NUM_PARTITIONS"
    ):
        load(None, {"TIDELOG_NUM_PARTITION": "1"})
    with pytest.raises(SettingError, match=r"environment TIDELOG_NODE_ID: node\.id=x: expected a whole number"):
        load(None, {"TIDELOG_NODE_ID": "x"})


def test_variables_of_the_command_line_and_of_others_are_left_alone() -> None:
    assert load(None, {"TIDELOG_BOOTSTRAP": "h:1", "KAFKA_NODE_ID": "9", "tidelog_node_id": "9"}).values == {}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("node.id", "--set node.id: expected key=value"),
        ("node.ids=1", "--set: unknown broker setting 'node.ids'; did you mean 'node.id'?"),
        ("node.id=-1", "--set: node.id=-1: expected 0 or more"),
        ("listeners=here", "'here' is not an address; expected HOST:PORT"),
        ("listeners=", "expected HOST:PORT"),
        ("log.dirs=/a,/a", "listed twice"),
        ("log.retention.ms=0", "expected -1 (unlimited) or 1 or more"),
        ("queued.max.request.bytes=0", "expected -1 (no limit)"),
        ("default.replication.factor=0", "expected 1 to 32767"),
    ],
)
def test_mistakes_on_the_command_line(override: str, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(None, {}, [override])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["advertised.listeners=PLAINTEXT://0.0.0.0:9092"], "clients can't connect to all interfaces"),
        (["listeners=EXTERNAL://:9092"], "add EXTERNAL:PLAINTEXT to listener.security.protocol.map"),
        (
            ["listener.security.protocol.map=PLAINTEXT:SSL"],
            "expected NAME:PLAINTEXT, comma-separated, got 'PLAINTEXT:SSL'",
        ),
        (["inter.broker.listener.name=INTERNAL"], "listeners has only PLAINTEXT"),
        (
            [
                "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
                "listeners=A://h:1",
                "advertised.listeners=B://h:1",
            ],
            "listeners has none of this name, only A",
        ),
        (["queued.max.request.bytes=1000"], "at least one request of socket.request.max.bytes=104857600"),
        (["log.cleaner.min.compaction.lag.ms=9", "log.cleaner.max.compaction.lag.ms=8"], "it exceeds"),
    ],
)
def test_settings_are_checked_against_each_other(overrides: list[str], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(None, {}, overrides)
    assert message in str(caught.value)


def test_a_value_may_hold_an_equals_sign() -> None:
    assert load(None, {}, ["broker.rack=zone=a"])["broker.rack"] == "zone=a"
