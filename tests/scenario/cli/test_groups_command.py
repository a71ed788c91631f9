from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

if TYPE_CHECKING:
    from tests.scenario.cli.conftest import Command

DEADLINE_S = 30.0


@contextmanager
def _consuming(bootstrap: str, group: str, topic: str, count: int, **settings: Any) -> Iterator[Consumer]:
    """A member of the group that has read and committed so many records, and stays until the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + DEADLINE_S
    read = 0
    while read < count:
        assert time.monotonic() < deadline, f"read {read} of {count} records"
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            read += 1
    consumer.commit(asynchronous=False)
    stopped = threading.Event()

    def stay() -> None:
        while not stopped.is_set():
            consumer.poll(0.1)

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        yield consumer
    finally:
        stopped.set()
        thread.join()
        consumer.close()


@pytest.fixture
def filled(tidelog: Command, topic: str) -> str:
    for partition in range(3):
        tidelog("produce", topic, "--partition", str(partition), stdin=b"a\nb\nc\nd\n").ok()
    return topic


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_list_and_describe(tidelog: Command, filled: str, protocol: str) -> None:
    group = f"describe-{protocol}"
    with _consuming(tidelog.bootstrap, group, filled, 12, **{"group.protocol": protocol}):
        listed = {row["group"]: row for row in tidelog("groups", "list", "--json").ok().json()}
        assert listed[group]["type"] == protocol
        assert listed[group]["lag"] == 0
        assert "lag" not in tidelog("groups", "list", "--json", "--no-lag").ok().json()[0]
        assert group in tidelog("groups", "list", "--type", protocol).ok().text
        other = "consumer" if protocol == "classic" else "classic"
        assert group not in tidelog("groups", "list", "--type", other).ok().text
        tidelog("produce", filled, "--partition", "1", stdin=b"late\n").ok()
        [document] = tidelog("groups", "describe", group, "--members", "--lag", "--history", "--json").ok().json()
        assert document["type"] == protocol
        [member] = document["members"]
        assert member["client"] == "reader"
        assert member["assignment"] == [[filled, 0], [filled, 1], [filled, 2]]
        assert [(row["committed"], row["end"], row["lag"]) for row in document["lag"]] == [
            (4, 4, 0),
            (4, 5, 1),
            (4, 4, 0),
        ]
        assert document["history"][-1]["cause"] == "member joined"
        assert document["history"][-1]["client"] == "reader"
        assert document["history"][-1]["stood_still_ms"] >= 0
        assert [group, "1"] in [
            [line.split()[0], line.split()[-1]] for line in tidelog("groups", "list").ok().text.splitlines()
        ], "one record is left to read"
        watching = tidelog.start("groups", "describe", group, "--lag", "--watch", "--interval", "0.1")
        assert watching.stdout is not None
        totals = [
            line for line, _ in zip(filter(lambda line: b"total" in line, watching.stdout), range(3), strict=False)
        ]
        assert totals == [b"total lag 1\n"] * 3
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 130
        text = tidelog("groups", "describe", group, "--history").ok().text
        assert "member joined" in text
        refused = tidelog("groups", "reset-offsets", group, "--topic", filled, "--to-earliest", "--execute").refused()
        assert "its consumers run" in refused
        assert "NON_EMPTY_GROUP" in tidelog("groups", "delete", group, "--yes").refused()
    [document] = tidelog("groups", "describe", group, "--json").ok().json()
    assert document["state"] == "Empty"
    assert "in progress" not in tidelog("groups", "describe", group, "--history").ok().text, "nobody is left to wait"
    assert "add --yes to confirm" in tidelog("groups", "delete", group).refused(2)
    for arguments in (("describe", f"{group}x"), ("delete", f"{group}x", "--yes")):
        assert f"did you mean '{group}'?" in tidelog("groups", *arguments).refused()
    assert tidelog("groups", "delete", group, "--yes").ok().text == f"deleted {group}\n"
    assert "GROUP_ID_NOT_FOUND" in tidelog("groups", "describe", group).refused()


def test_reset_offsets_in_every_way(tidelog: Command, filled: str, tmp_path: Path) -> None:
    group = "resets"
    with _consuming(tidelog.bootstrap, group, filled, 12):
        pass

    def plan(*how: str, topic: str = filled) -> dict[int, tuple[int | None, int]]:
        result = tidelog("groups", "reset-offsets", group, "--topic", topic, *how, "--json")
        assert result.code == 0, result.err
        return {row["partition"]: (row["was"], row["will_be"]) for row in result.json()["offsets"]}

    assert plan("--to-earliest") == {0: (4, 0), 1: (4, 0), 2: (4, 0)}
    assert plan("--to-latest", topic=f"{filled}:0,2") == {0: (4, 4), 2: (4, 4)}
    assert plan("--shift-by", "-3")[0] == (4, 1)
    assert plan("--shift-by", "-30")[0] == (4, 0)
    assert plan("--to-offset", "2")[1] == (4, 2)
    assert plan("--to-current")[1] == (4, 4)
    assert plan("--by-duration", "1h")[2] == (4, 0)
    assert plan("--by-duration", "PT1S", topic=f"{filled}:0").keys() == {0}
    assert plan("--to-datetime", "2099-01-01T00:00:00Z")[2] == (4, 4)
    [document] = tidelog("groups", "describe", group, "--lag", "--json").ok().json()
    assert {row["committed"] for row in document["lag"]} == {4}, "a dry run changes nothing"

    exported = tidelog("groups", "reset-offsets", group, "--all-topics", "--to-offset", "1", "--export")
    file = tmp_path / "offsets.csv"
    file.write_bytes(exported.out)
    assert file.read_text().splitlines()[0] == f"{filled},0,1"
    tidelog("groups", "reset-offsets", group, "--from-file", str(file), "--execute").ok()
    [document] = tidelog("groups", "describe", group, "--lag", "--json").ok().json()
    assert [row["committed"] for row in document["lag"]] == [1, 1, 1]
    with _consuming(tidelog.bootstrap, group, filled, 9):
        pass


def test_what_makes_no_sense_is_refused(tidelog: Command, filled: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("orders,zero,1\n")
    assert "line 1" in tidelog("groups", "reset-offsets", "g", "--from-file", str(file)).refused()
    for arguments in (
        ("--topic", filled),
        ("--topic", filled, "--to-earliest", "--to-latest"),
        ("--to-earliest",),
        ("--topic", filled, "--all-topics", "--to-earliest"),
        ("--topic", filled, "--by-duration", "soon"),
        ("--topic", filled, "--to-datetime", "yesterday"),
        ("--topic", f"{filled}:x", "--to-earliest"),
    ):
        assert tidelog("groups", "reset-offsets", "g", *arguments).code == 2, arguments
    assert (
        "no partition 9" in tidelog("groups", "reset-offsets", "g", "--topic", f"{filled}:9", "--to-earliest").refused()
    )
    assert "no committed offsets" in tidelog("groups", "reset-offsets", "g", "--all-topics", "--to-earliest").refused()
    assert "GROUP_ID_NOT_FOUND" in tidelog("groups", "delete", "nobody", "--yes").refused()
