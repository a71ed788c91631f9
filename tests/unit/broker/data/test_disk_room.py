"""When a directory that was full is written again."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidelog.broker.disk_room import HOLD_FIRST_MS, HOLD_LONGEST_MS, REFILL_MS, DiskRoom, has_room
from tidelog.common.clock import VirtualClock

HERE, THERE = Path("/here"), Path("/there")


class Disks:
    """Directories of which some have room."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.with_room: set[Path] = set()
        self.room = DiskRoom(self.clock)

    def freed_after(self, step_ms: float) -> list[Path]:
        self.clock.advance(ms=step_ms)
        freed = [directory for directory in self.room.due if directory in self.with_room]
        for directory in freed:
            self.room.note_room(directory)
        return freed


def test_a_directory_is_full_until_its_disk_has_room() -> None:
    disks = Disks()
    assert not disks.room.is_full(HERE)
    assert disks.room.note_full(HERE)
    assert not disks.room.note_full(HERE)
    assert (disks.room.full, disks.room.is_full(THERE)) == ([HERE], False)
    assert disks.freed_after(10 * HOLD_FIRST_MS) == []
    disks.with_room.add(HERE)
    assert disks.freed_after(0) == [HERE]
    assert (disks.room.full, disks.freed_after(1)) == ([], [])


def test_one_that_fills_up_again_soon_is_left_alone_for_longer() -> None:
    """As with a quota: the disk has room all the time, and writes fail all the same."""
    disks = Disks()
    disks.with_room.add(HERE)
    hold_ms = float(HOLD_FIRST_MS)
    for _ in range(12):
        assert disks.room.note_full(HERE)
        assert disks.freed_after(hold_ms - 1) == []
        assert disks.freed_after(1) == [HERE]
        disks.clock.advance(ms=REFILL_MS - 1)
        hold_ms = min(2 * hold_ms, HOLD_LONGEST_MS)
    assert hold_ms == HOLD_LONGEST_MS
    disks.clock.advance(ms=1)
    assert disks.room.note_full(HERE)
    assert disks.freed_after(HOLD_FIRST_MS) == [HERE]


@pytest.mark.parametrize(
    ("free", "size", "inodes_free", "inodes", "expected"),
    [
        (5, 100, 0, 0, True),
        (4, 100, 0, 0, False),
        (5, 100, 4, 100, False),
        (5, 100, 5, 100, True),
        (1 << 20, 1 << 40, 999, 1 << 30, False),
        (1 << 20, 1 << 40, 1000, 1 << 30, True),
        ((1 << 20) - 1, 1 << 40, 0, 0, False),
    ],
)
def test_room_is_a_share_of_the_disk(
    monkeypatch: pytest.MonkeyPatch, free: int, size: int, inodes_free: int, inodes: int, expected: bool
) -> None:
    disk = SimpleNamespace(f_bavail=free, f_blocks=size, f_frsize=1024, f_favail=inodes_free, f_files=inodes)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    assert has_room(HERE) is expected


def test_a_directory_that_cannot_be_asked_is_left_to_its_writers(tmp_path: Path) -> None:
    assert has_room(tmp_path / "missing")
    assert has_room(Path(os.devnull)) in (True, False)
