from __future__ import annotations

import os
import pty
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scenario.cli.conftest import Command


def test_create_describe_alter_delete(tidelog: Command) -> None:
    created = tidelog("topics", "create", "life", "--partitions", "2", "--config", "retention.ms=60000").ok()
    assert created.text == "created life with 2 partitions, replication factor 1\n"
    [described] = tidelog("topics", "describe", "life", "--json").ok().json()
    assert described["configs"] == {"retention.ms": "60000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1]
    assert all(row["leader"] in row["isr"] for row in described["partitions"])

    tidelog("topics", "alter", "life", "--partitions", "3", "--config", "retention.ms=70000").ok()
    [described] = tidelog("topics", "describe", "life", "--json").ok().json()
    assert described["configs"] == {"retention.ms": "70000"}
    assert len(described["partitions"]) == 3
    assert "INVALID_PARTITIONS" in tidelog("topics", "alter", "life", "--partitions", "1").refused()
    tidelog("topics", "alter", "life", "--delete-config", "retention.ms").ok()
    assert tidelog("topics", "describe", "life", "--json").ok().json()[0]["configs"] == {}

    assert tidelog("topics", "delete", "life", "--yes").ok().text == "deleted life\n"
    assert "no topic 'life'" in tidelog("topics", "describe", "life").refused()


def test_describe_shows_offsets_and_sizes(tidelog: Command, topic: str) -> None:
    tidelog("produce", topic, "--partition", "1", stdin=b"one\ntwo\n").ok()
    text = tidelog("topics", "describe", topic).ok().text
    assert "3 partitions, replication factor 1, 2 records" in text
    assert "PARTITION  LEADER  REPLICAS  IN-SYNC  FIRST-OFFSET  END-OFFSET" in text
    assert "\x1b" not in text
    rows = tidelog("topics", "describe", topic, "--json").ok().json()[0]["partitions"]
    assert [(row["first_offset"], row["end_offset"]) for row in rows] == [(0, 0), (0, 2), (0, 0)]
    assert rows[1]["size_bytes"] > 60


def test_describe_sizes_shows_what_every_replica_takes(tidelog: Command, topic: str) -> None:
    tidelog("produce", topic, "--partition", "1", stdin=b"one\ntwo\n").ok()
    [document] = tidelog("topics", "describe", topic, "--sizes", "--json").ok().json()
    rows = document["replicas"]
    assert [(row["partition"], row["broker"], row["offsets"]) for row in rows] == [(0, 1, 0), (1, 1, 2), (2, 1, 0)]
    taken = rows[1]["size_bytes"]
    assert taken == document["size_bytes"] > 60
    assert rows[1]["bytes_per_offset"] == taken / 2
    assert rows[0]["bytes_per_offset"] is None
    assert rows[1]["directory"].endswith("broker-1")
    lines = tidelog("topics", "describe", topic, "--sizes").ok().text.splitlines()
    assert lines[0].startswith(f"{topic}  3 replicas, ")
    assert lines[1].split() == ["PARTITION", "BROKER", "SIZE", "OFFSETS", "BYTES/OFFSET", "DIRECTORY"]
    assert lines[3].split()[-3:] == ["2", f"{taken / 2:.1f}", rows[1]["directory"]]


def test_list(tidelog: Command, topic: str) -> None:
    listed = {row["topic"]: row for row in tidelog("topics", "list", "--json").ok().json()}
    assert listed[topic]["partitions"] == 3
    lines = tidelog("topics", "list").ok().text.splitlines()
    assert lines[0].split() == ["TOPIC", "PARTITIONS", "REPLICAS"]
    assert [topic, "3", "1"] in [line.split() for line in lines]


def test_what_exists_already_is_refused_or_left_alone(tidelog: Command, topic: str) -> None:
    assert "TOPIC_ALREADY_EXISTS" in tidelog("topics", "create", topic).refused()
    assert tidelog("topics", "create", topic, "--if-not-exists").ok().text == f"{topic} exists already\n"


def test_one_refusal_does_not_stop_the_others(tidelog: Command, topic: str) -> None:
    result = tidelog("topics", "create", topic, f"{topic}-b", "--json")
    assert "TOPIC_ALREADY_EXISTS" in result.refused()
    assert {row["topic"]: row["error"] for row in result.json()} == {topic: "TOPIC_ALREADY_EXISTS", f"{topic}-b": None}
    assert f"{topic}-b" in [row["topic"] for row in tidelog("topics", "list", "--json").ok().json()]


def test_validate_only_changes_nothing(tidelog: Command, topic: str) -> None:
    assert tidelog("topics", "create", f"{topic}-v", "--validate-only").ok().text.startswith(f"would create {topic}-v")
    assert "no topic" in tidelog("topics", "describe", f"{topic}-v").refused()
    tidelog("topics", "alter", topic, "--partitions", "9", "--validate-only").ok()
    assert len(tidelog("topics", "describe", topic, "--json").ok().json()[0]["partitions"]) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topics", "create", "x", "--config", "retention.mz=1"], "retention.m"),
        (["topics", "create", "x", "--config", "retention.ms=soon"], "retention.ms"),
        (["topics", "create", "x", "--replication-factor", "3"], "INVALID_REPLICATION_FACTOR"),
        (["topics", "delete", "not-there", "--yes"], "there is no such topic"),
        (["topics", "describe", "not-there"], "create it with 'tidelog topics create not-there'"),
        (["topics", "alter", "not-there", "--partitions", "2"], "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_refusals_are_one_line(tidelog: Command, arguments: list[str], words: str) -> None:
    assert words in tidelog(*arguments).refused()


def test_delete_if_exists(tidelog: Command) -> None:
    assert tidelog("topics", "delete", "not-there", "--if-exists", "--yes").ok().text == "not-there does not exist\n"


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"\n", 1), (b"y\n", 0)])
def test_delete_asks_on_a_terminal(tidelog: Command, topic: str, answer: bytes, code: int) -> None:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer)
        result = tidelog("topics", "delete", topic, stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert result.code == code
    assert f"Delete {topic} and all records? [y/N]" in result.err
    is_there = topic in [row["topic"] for row in tidelog("topics", "list", "--json").ok().json()]
    assert is_there == (code == 1)


def existing(tidelog: Command) -> list[str]:
    return [row["topic"] for row in tidelog("topics", "list", "--json").ok().json()]


def test_delete_with_yes_does_not_ask(tidelog: Command, topic: str) -> None:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"n\n")  # so that a question would be answered with no
        tidelog("topics", "delete", topic, "--yes", stdin=theirs).ok()
    finally:
        os.close(ours)
        os.close(theirs)
    assert topic not in existing(tidelog)


@pytest.mark.parametrize("answer", [b"", b"y\n"])
def test_without_a_terminal_nothing_is_deleted_but_with_yes(tidelog: Command, topic: str, answer: bytes) -> None:
    assert "add --yes to confirm" in tidelog("topics", "delete", topic, stdin=answer).refused(2)
    assert topic in existing(tidelog)
    tidelog("topics", "delete", topic, "--yes").ok()
    assert topic not in existing(tidelog)


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "describe", "{typo}"],
        ["topics", "alter", "{typo}", "--partitions", "9"],
        ["topics", "delete", "{typo}", "--yes"],
        ["produce", "{typo}"],
        ["consume", "{typo}"],
        ["configs", "describe", "--topic", "{typo}"],
        ["configs", "set", "--topic", "{typo}", "retention.ms=1"],
        ["groups", "reset-offsets", "g", "--topic", "{typo}", "--to-earliest"],
        ["transactions", "find-hanging", "--topic", "{typo}"],
    ],
)
def test_a_mistyped_topic_is_answered_with_the_one_that_was_meant(tidelog: Command, arguments: list[str]) -> None:
    tidelog("topics", "create", "customers", "--if-not-exists").ok()
    result = tidelog(*(argument.format(typo="custommers") for argument in arguments))
    assert "did you mean 'customers'?" in result.refused()


def test_addresses_may_have_a_scheme(make_command: Callable[[str], Command], tidelog: Command) -> None:
    nowhere = make_command("127.0.0.1:1")
    nowhere("topics", "list", "-b", f"kafka://{tidelog.bootstrap}").ok()
    make_command(f"PLAINTEXT://{tidelog.bootstrap}/")("topics", "list").ok()
    assert "an address is HOST:PORT" in nowhere("topics", "list", "-b", "http://127.0.0.1:9092").refused(2)
