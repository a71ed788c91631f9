"""Replicas are compared byte by byte below an offset, and compacted ones record by record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tidelog.records import NewRecord, assign_offsets, encode_batch
from tidelog.torture.replicas import compare_logs

NAME = "orders-0"


def batch(base_offset: int, values: Sequence[bytes], epoch: int = 0) -> bytes:
    records = [NewRecord(b"k%d" % number, value, timestamp_ms=1) for number, value in enumerate(values)]
    content = bytearray(encode_batch(records))
    assign_offsets(content, base_offset, epoch)
    return bytes(content)


class Replicas:
    """Directories of one partition."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.paths: dict[int, Path] = {}

    def add(self, node_id: int, *segments: Sequence[bytes], start: int = 0) -> None:
        path = self.paths[node_id] = self.directory / f"broker-{node_id}"
        path.mkdir()
        for number, batches in enumerate(segments):
            (path / f"{start + number * 100:020d}.log").write_bytes(b"".join(batches))

    def differences(self, up_to: int | None = None, *, compacted: bool = False) -> Sequence[str]:
        return compare_logs(NAME, self.paths, up_to, compacted=compacted).differences


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path)


A, B, C = batch(0, [b"a", b"b"]), batch(2, [b"c"]), batch(3, [b"d"])


def test_equal_replicas_may_roll_elsewhere(replicas: Replicas) -> None:
    replicas.add(1, [A, B, C])
    replicas.add(2, [A], [B, C])
    assert replicas.differences() == replicas.differences(4) == []
    assert compare_logs(NAME, replicas.paths).end_offset == 4


def test_replicas_may_start_at_other_offsets(replicas: Replicas) -> None:
    replicas.add(1, [A, B, C])
    replicas.add(2, [B, C], start=2)
    assert replicas.differences(4) == []
    replicas.add(3, [], start=4)
    assert replicas.differences(4) == []


def test_a_byte_differs(replicas: Replicas) -> None:
    replicas.add(1, [A, B, C])
    replicas.add(2, [A, batch(2, [b"x"]), C])
    assert replicas.differences() == [
        f"{NAME} differs at offset 2: broker 1 has offsets 2 to 2 of leader epoch 0; "
        "broker 2 has offsets 2 to 2 of leader epoch 0"
    ]
    assert replicas.differences(2) == []


def test_the_leader_epoch_counts(replicas: Replicas) -> None:
    replicas.add(1, [A, B])
    replicas.add(2, [A, batch(2, [b"c"], epoch=1)])
    assert "leader epoch 1" in replicas.differences()[0]


def test_what_is_above_the_high_watermark_may_differ(replicas: Replicas) -> None:
    replicas.add(1, [A, B, C])
    replicas.add(2, [A, B])
    assert replicas.differences(3) == []
    assert "broker 2 has nothing more" in replicas.differences(4)[0]


def test_records_that_all_lack_are_missed(replicas: Replicas) -> None:
    replicas.add(1, [A])
    replicas.add(2, [A])
    assert replicas.differences(4) == [f"{NAME} ends at offset 2 on all of [1, 2], before 4"]


def test_a_hole_is_found(replicas: Replicas) -> None:
    replicas.add(1, [A, B, C])
    replicas.add(2, [A, C])
    assert "differs at offset 2" in replicas.differences(4)[0]


def test_compacted_replicas_agree_on_what_both_have(replicas: Replicas) -> None:
    replicas.add(1, [A, B, C])
    replicas.add(2, [A, C])
    assert replicas.differences(4, compacted=True) == []
    replicas.add(3, [A, batch(3, [b"x"])])
    assert replicas.differences(4, compacted=True) == [
        f"{NAME} differs at offset 3: broker 1 has b'k0': b'd', broker 3 has b'k0': b'x'"
    ]


def test_empty_replicas_are_equal(replicas: Replicas) -> None:
    replicas.add(1, [])
    replicas.add(2, [])
    assert replicas.differences(0) == []
