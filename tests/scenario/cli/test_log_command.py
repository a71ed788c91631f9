from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scenario.cli.conftest import Command

    from tidelog.testing.broker import Broker


@pytest.fixture
def data(start_broker: Callable[..., Broker], make_command: Callable[[str], Command], tmp_path: Path) -> Iterator[Path]:
    """The data directory of a broker that has stopped: three records in `t-0`, none in `t-1`."""
    broker = start_broker(data_dir=tmp_path / "data")
    broker.create_topic("t", 2)
    command = make_command(broker.bootstrap)
    produced = command(
        *("produce", "t", "--partition", "0", "--key-separator", ":", "--compression", "gzip"),
        stdin=b"k:one\nk:\xff\nk:three\n",
    )
    produced.ok()
    broker.stop()
    yield tmp_path / "data"
    broker.start()


@pytest.fixture
def command(make_command: Callable[[str], Command]) -> Command:
    return make_command("127.0.0.1:1")


def partition(data: Path) -> Path:
    [directory] = data.rglob("t-0")
    return directory


def log_file(data: Path) -> Path:
    [file] = partition(data).glob("*.log")
    return file


def test_dump_shows_batches(data: Path, command: Command) -> None:
    text = command("log", "dump", str(partition(data))).ok().text
    assert str(log_file(data)) in text
    assert "offsets 0-2, at byte 0, 3 records" in text
    assert "gzip" in text
    assert "CRC ok" in text


def test_dump_shows_records(data: Path, command: Command) -> None:
    text = command("log", "dump", str(log_file(data)), "--records").ok().text
    assert "key k  value one" in text
    assert r"key k  value \xff" in text
    [batch] = command("log", "dump", str(log_file(data)), "--records", "--json").ok().json()
    assert [record.get("value", record.get("value_base64")) for record in batch["records"]] == ["one", "/w==", "three"]
    assert batch["crc_valid"] is True
    assert batch["records_count"] == 3


def test_verify_a_whole_data_directory(data: Path, command: Command) -> None:
    assert "2 partitions verified, no problem found" in command("log", "verify", str(data)).ok().text
    assert command("log", "verify", str(partition(data)), "--json").ok().json() == []
    command("log", "verify", str(log_file(data))).ok()


def test_verify_finds_a_changed_byte(data: Path, command: Command) -> None:
    file = log_file(data)
    content = bytearray(file.read_bytes())
    content[-1] ^= 0xFF
    file.write_bytes(content)
    for path in (data, partition(data), file):
        result = command("log", "verify", str(path))
        assert "1 problem found" in result.refused()
        assert str(file) in result.text
    [problem] = command("log", "verify", str(data), "--json").json()
    assert problem["file"] == str(file)
    assert "CRC WRONG" in command("log", "dump", str(file)).ok().text


def test_dump_of_a_torn_file_says_where_it_ends(data: Path, command: Command) -> None:
    file = log_file(data)
    file.write_bytes(file.read_bytes()[:-5])
    assert "damaged from byte 0" in command("log", "dump", str(file)).ok().text
    assert "1 problem found" in command("log", "verify", str(file)).refused()


def test_refuses_what_is_no_log(tmp_path: Path, command: Command) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello", encoding="utf-8")
    assert "notes.txt is not a log, index" in command("log", "dump", str(other)).refused()
    assert "holds no partition" in command("log", "verify", str(tmp_path)).refused()
    assert "does not exist" in command("log", "dump", str(tmp_path / "none")).refused(2)
