"""Contents of topics and tables in a file, and how two of them differ."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from tidelog.pipeline.versions.contents import Change, Contents, Counts
from tidelog.pipeline.versions.topic_reader import record_bytes, record_parts


def _contents(path: Path, values: dict[bytes, bytes], partition: int = 0) -> Contents:
    contents = Contents(path)
    contents.put({key: (value, partition) for key, value in values.items()})
    return contents


@pytest.mark.parametrize("seed", range(5))
def test_differences_are_those_of_two_dicts(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    keys = [b"key-%d" % number for number in range(300)]
    old = {key: b"%d" % random_.randrange(3) for key in random_.sample(keys, 200)}
    new = {key: b"%d" % random_.randrange(3) for key in random_.sample(keys, 200)}
    with _contents(tmp_path / "old.db", old, 1) as held, _contents(tmp_path / "new.db", new, 2) as wanted:
        expected = {
            key: Change(key, old.get(key), new.get(key), 1 if key in old else None, 2 if key in new else None)
            for key in old.keys() | new.keys()
            if old.get(key) != new.get(key)
        }
        assert {change.key: change for change in held.changes(wanted)} == expected
        counts = held.counts(wanted)
        assert counts == Counts(
            added=len(new.keys() - old.keys()),
            changed=sum(old[key] != new[key] for key in old.keys() & new.keys()),
            missing=len(old.keys() - new.keys()),
            equal=sum(old[key] == new[key] for key in old.keys() & new.keys()),
        )
        assert counts.differing == len(expected)


def test_written_changes_make_the_old_as_the_new(tmp_path: Path) -> None:
    with (
        _contents(tmp_path / "old.db", {b"a": b"1", b"b": b"2", b"c": b"3"}) as old,
        _contents(tmp_path / "new.db", {b"a": b"1", b"b": b"9", b"d": b"4"}) as new,
    ):
        changes = list(old.changes(new))
        old.put({change.key: (change.new, 0) for change in changes})
        assert list(old.rows()) == list(new.rows())
        assert old.counts(new) == Counts(0, 0, 0, equal=3)


def test_a_null_removes_a_key_and_positions_go_with_the_rows(tmp_path: Path) -> None:
    with _contents(tmp_path / "a.db", {b"a": b"1", b"b": b"2"}) as contents:
        contents.put({b"a": (None, 0), b"c": (b"3", 0)}, {0: 17})
        assert [row.key for row in contents.rows()] == [b"b", b"c"]
        assert contents.positions == {0: 17}
        with pytest.raises(sqlite3.ProgrammingError):
            contents.put({b"d": (b"4", 0), b"e": (object(), 0)}, {0: 18})  # type: ignore[dict-item]
        assert [row.key for row in contents.rows()] == [b"b", b"c"]
        assert contents.positions == {0: 17}
    with Contents(tmp_path / "a.db") as again:
        assert (len(again), again.positions) == (2, {0: 17})
        again.begin_anew("another topic")
        assert (len(again), again.positions, again.origin) == (0, {}, "another topic")


def test_values_that_mean_the_same_are_equal(tmp_path: Path) -> None:
    with (
        _contents(tmp_path / "old.db", {b"a": b'{"x":1,"y":2}', b"b": b'{"x":1}'}) as old,
        _contents(tmp_path / "new.db", {b"a": b'{"y":2,"x":1}', b"b": b'{"x":2}'}) as new,
    ):
        assert old.counts(new) == Counts(0, changed=2, missing=0, equal=0)
        same = lambda one, other: json.loads(one) == json.loads(other)  # noqa: E731
        assert old.counts(new, same) == Counts(0, changed=1, missing=0, equal=1)
        assert [change.key for change in old.changes(new, same)] == [b"b"]


def test_records_without_keys_are_counted(tmp_path: Path) -> None:
    with Contents(tmp_path / "old.db") as old, Contents(tmp_path / "new.db") as new:
        old.count(Counter([b"a", b"a", b"b", b"c"]))
        old.count({b"c": 1})
        new.count(Counter([b"a", b"b", b"b", b"b", b"d"]))
        assert old.counts(new) == Counts(added=3, changed=0, missing=3, equal=2)


def test_samples_are_limited_by_kind(tmp_path: Path) -> None:
    with (
        _contents(tmp_path / "old.db", {b"%d" % number: b"1" for number in range(10)}) as old,
        _contents(tmp_path / "new.db", {b"%d" % number: b"2" for number in range(5, 20)}) as new,
    ):
        assert len(list(old.changes(new, limit=2))) == 6
        assert [change.old for change in old.changes(new, kinds=["missing"])] == [b"1"] * 5


@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("value", [None, b"", b"value"])
def test_a_record_as_bytes_keeps_its_parts(key: bytes | None, value: bytes | None) -> None:
    assert record_parts(record_bytes(key, value)) == (key, value)
