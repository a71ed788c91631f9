"""Names, keys and settings of deduplicators, and how long busy keys are waited for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio

from tidelog import AsyncDeduplicator, Deduplicator
from tidelog.client.errors import ClientError, ConfigError, MissingExtraError
from tidelog.client.processing.claim_store import ClaimResult, ClaimState, Waiting, WhenBusy
from tidelog.client.processing.errors import ClaimBusyError
from tidelog.client.processing.record_keys import by_header, by_key, by_offset, stored_key


@pytest.mark.parametrize(
    "table", ["", "a b", "a;drop table x", 'a"', "A", "1a", "a.b.c", "a" * 49, "a.", ".a", "a--", "ä", "a\n"]
)
def test_a_table_name_that_could_be_sql_is_refused(table: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be the name of a table"):
        Deduplicator(tmp_path / "a.db", name="n", table=table)


@pytest.mark.parametrize("name", ["", "a b", "a{b}", "a" * 101, "a:b", "a\n"])
def test_a_name_that_would_split_keys_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be the name of a deduplicator"):
        Deduplicator(tmp_path / "a.db", name=name)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lease_s": 0}, "lease_s is 0"),
        ({"expiry_s": -1}, "expiry_s is -1"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"when_busy": "ignore"}, "one of wait, skip, raise"),
        ({"wait_s": -1}, "wait_s is -1"),
        ({"table": "other.seen"}, "no schema"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        Deduplicator(tmp_path / "a.db", name="n", **options)


@pytest.mark.parametrize("target", ["mysql://host/db", "dedup.db", "sqlite://", "sqlite://host/file", "sqlite:///", 7])
def test_what_names_no_database_is_refused(target: Any) -> None:
    for kind in (Deduplicator, AsyncDeduplicator):
        with pytest.raises(ConfigError, match=r"names no (database|file)|works over a URL"):
            kind(target, name="n")


def test_a_redis_client_of_the_other_kind_is_refused() -> None:
    """It would block the event loop, or be asked to wait where nothing can."""
    with pytest.raises(ConfigError, match=r"takes a client of redis\.asyncio, not redis\.client\.Redis"):
        AsyncDeduplicator(redis.Redis(), name="n")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"takes redis\.Redis, not redis\.asyncio\.client\.Redis"):
        Deduplicator(redis.asyncio.Redis(), name="n")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "package", "extra"),
    [("redis://host", "redis", "redis"), ("postgresql://host/db", "psycopg", "postgres")],
)
def test_a_missing_driver_is_told_with_its_command(
    monkeypatch: pytest.MonkeyPatch, target: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for kind in (Deduplicator, AsyncDeduplicator):
        with pytest.raises(MissingExtraError, match=rf"pip install 'tidelog\[{extra}\]'") as raised:
            kind(target, name="n")
        assert isinstance(raised.value, ClientError)
        assert isinstance(raised.value, ImportError)


def test_sqlite_needs_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for target in (tmp_path / "a.db", "sqlite:///b%20c.db", f"sqlite:////{str(tmp_path)[1:]}/d.db"):
        with Deduplicator(target, name="n") as dedup, dedup.once("k") as first:
            assert first
    assert {path.name for path in tmp_path.glob("*.db")} == {"a.db", "b c.db", "d.db"}


def test_keys_of_records() -> None:
    record: Any = SimpleNamespace(
        topic="orders", partition=3, offset=9, key=b"k", headers=[("id", None), ("id", b"7"), ("id", b"8")]
    )
    assert by_offset(record) == "orders-3-9"
    assert by_key(record) == b"k"
    assert by_header("id")(record) == b"7"
    record.key = None
    with pytest.raises(ValueError, match="orders-3-9 has the key None"):
        by_key(record)
    with pytest.raises(ValueError, match="no header 'other'"):
        by_header("other")(record)


def test_keys_as_they_are_stored() -> None:
    assert stored_key("ä") == "ä".encode() == stored_key("ä".encode())
    assert stored_key(b"x" * 256) == b"x" * 256
    assert len(stored_key(b"x" * 257)) < 80
    assert stored_key(b"x" * 257) != stored_key(b"x" * 258)
    with pytest.raises(ValueError, match="empty"):
        stored_key("")


def test_waiting_gets_slower_and_ends() -> None:
    waiting = Waiting(WhenBusy.WAIT, 1.0, now_s=0)
    busy = [ClaimResult(ClaimState.DONE), ClaimResult(ClaimState.BUSY, busy_ms=5000)]
    now_s, pauses = 0.0, []
    while now_s < 1.0:
        pause_s = waiting.pause_s([b"a", b"b"], busy, now_s)
        assert pause_s is not None
        pauses.append(pause_s)
        now_s += pause_s
    assert pauses[:3] == [0.005, 0.01, 0.02]
    assert max(pauses) <= 0.2
    assert now_s < 1.01
    with pytest.raises(ClaimBusyError, match="b: another process works on it, and its lease lasts 5000 ms"):
        waiting.pause_s([b"a", b"b"], busy, now_s)
    assert waiting.pause_s([b"a"], busy[:1], now_s) is None


def test_waiting_ends_with_the_lease_of_the_other() -> None:
    waiting = Waiting(WhenBusy.WAIT, 60.0, now_s=0)
    for _ in range(10):
        waiting.pause_s([b"a"], [ClaimResult(ClaimState.BUSY, busy_ms=5000)], 0)
    assert waiting.pause_s([b"a"], [ClaimResult(ClaimState.BUSY, busy_ms=30)], 0) == 0.03
