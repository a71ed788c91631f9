"""`tidelog log repair`: shows, then does, and a broker serves the partition again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.records import iter_headers

if TYPE_CHECKING:
    from tests.scenario.cli.conftest import Command

    from tidelog.testing.broker import Broker

RECORDS = 5


@pytest.fixture
def broker(start_broker: Callable[..., Broker], make_command: Callable[[str], Command], tmp_path: Path) -> Broker:
    """A broker that has stopped: five records in batches of their own in `t-0`, none in `t-1`."""
    broker = start_broker(data_dir=tmp_path / "data")
    broker.create_topic("t", 2)
    command = make_command(broker.bootstrap)
    for number in range(RECORDS):
        command("produce", "t", "--partition", "0", stdin=b"record-%d\n" % number).ok()
    return broker


def log_file(broker: Broker) -> Path:
    [directory] = broker.data_dir.rglob("t-0")
    [file] = directory.glob("*.log")
    return file


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    third = [position for position, _ in iter_headers(bytes(content))][2]
    content[third + 70] ^= 0xFF
    file.write_bytes(content)


def test_a_damaged_partition_is_served_again(broker: Broker, make_command: Callable[[str], Command]) -> None:
    command = make_command(broker.bootstrap)
    file = log_file(broker)
    assert "is in use by" in command("log", "repair", str(file.parent)).refused()
    broker.crash()
    damage(file)
    before = file.read_bytes()
    shown = command("log", "repair", str(broker.data_dir))
    assert "1 of 2 partitions can be repaired: run it again with --execute" in shown.refused()
    assert "offsets 2 to 2 are lost; 1 record by the header of the batch" in shown.text
    assert file.read_bytes() == before
    done = command("log", "repair", str(broker.data_dir), "--execute").ok()
    assert "1 of 2 partitions repaired" in done.text
    [kept] = file.parent.parent.glob("t-0.*-cut")
    assert str(kept) in done.text
    assert (kept / file.name).read_bytes() == before
    assert "nothing to repair" in command("log", "repair", str(broker.data_dir), "--execute").ok().text
    command("log", "verify", str(broker.data_dir)).ok()
    broker.start()
    consumed = command("consume", "t", "--partition", "0", "--from-beginning", "--max-messages", str(RECORDS - 1)).ok()
    assert consumed.text.split() == ["record-0", "record-1", "record-3", "record-4"]


def test_json(broker: Broker, make_command: Callable[[str], Command]) -> None:
    command = make_command("127.0.0.1:1")
    broker.stop()
    file = log_file(broker)
    damage(file)
    result = command("log", "repair", str(file.parent), "--json")
    result.refused()
    [partition] = result.json()
    [action] = partition["actions"]
    assert (action["first_lost_offset"], action["last_lost_offset"], action["lost_records_count"]) == (2, 2, 1)
    assert (partition["executed"], partition["kept_in"], partition["log_end_offset"]) == (False, None, RECORDS)
    [partition] = command("log", "repair", str(file.parent), "--json", "--execute").ok().json()
    assert partition["executed"] is True
    assert partition["kept_in"].endswith("-cut")
    broker.start()


def test_what_is_no_partition(tmp_path: Path, make_command: Callable[[str], Command]) -> None:
    command = make_command("127.0.0.1:1")
    assert "holds no partition" in command("log", "repair", str(tmp_path)).refused()
    assert "does not exist" in command("log", "repair", str(tmp_path / "none")).refused(2)
