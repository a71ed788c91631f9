"""Histories: what was written is read again, a cut end is forgiven, and damage is named by file and line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.torture.history import (
    EVENTS,
    UNDER_WAY,
    HistoryError,
    HistoryWriter,
    Operation,
    read_history,
    read_operation_at,
    read_rows,
)

SENT = Operation("queue-send-2.1", "send", "ok", 10, 20, [["send", "queue-0", [1 << 33, 2], [7, None]]])
POLLED = Operation("queue-send-2.1", "poll", "unknown", 21, 22, [["poll", "queue-0", [7], [1 << 33]]], "too slow: ä\n")


def written(directory: Path, *operations: Operation) -> Path:
    path = directory / "histories" / "queue" / "queue-send-2.1.jsonl"
    with HistoryWriter(path) as writer:
        for operation in operations:
            writer.write(operation)
    return path


def test_operations_are_read_as_written(tmp_path: Path) -> None:
    assert list(read_history(written(tmp_path, SENT, POLLED))) == [SENT, POLLED]


def test_an_operation_is_found_by_the_position_of_its_row(tmp_path: Path) -> None:
    path = written(tmp_path, SENT, POLLED, SENT)
    positions = [position for position, _ in read_rows(path)]
    assert [read_operation_at(path, position) for position in positions] == [SENT, POLLED, SENT]


def test_a_last_line_that_was_cut_off_is_ignored(tmp_path: Path) -> None:
    path = written(tmp_path, SENT, POLLED)
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for length in range(second, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert list(read_history(path)) == [SENT]
    path.write_bytes(whole[:-1])
    assert list(read_history(path)) == [SENT, POLLED]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('["send","ok",1,2,[["se', "not JSON"),
        ('{"f":"send"}', "not a list of operation, outcome"),
        ('["send","ok",1,2,[]]', "not a list of operation, outcome"),
        ('["sent","ok",1,2,[],""]', "no operation is called 'sent'"),
        ('["send","fine",1,2,[],""]', "no outcome is called 'fine'"),
        ('["send","ok",3,2,[],""]', "it doesn't end after its start"),
        ('["send","ok",1.5,2,[],""]', "it doesn't end after its start"),
        ('["send","ok",1,2,[],null]', "the error is a text"),
        ('["send","ok",1,2,[["sent","k-0",[],[]]],""]', "not an event: ['sent'"),
        ('["send","ok",1,2,[["send","k-0",[1]]],""]', "not an event: ['send'"),
        ('["send","ok",1,2,[[]],""]', "not an event: []"),
        ('["send","ok",1,2,[["send","k-0",[1],[]]],""]', "as many offsets as values"),
        ('["poll","ok",1,2,[["poll","k-0",[1],[1,2]]],""]', "as many offsets as values"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = written(tmp_path, SENT)
    good = path.read_text()
    path.write_text(good + line + "\n" + good)
    with pytest.raises(HistoryError, match="line 2: ") as raised:
        list(read_history(path))
    assert problem in str(raised.value)
    assert str(path) in str(raised.value)


def test_an_announced_operation_counts_once(tmp_path: Path) -> None:
    announced = Operation("queue-send-2.1", "send", "unknown", 10, 15, SENT.events, UNDER_WAY)
    other = Operation("queue-send-2.1", "send", "unknown", 11, 15, SENT.events, UNDER_WAY)
    part = Operation("queue-send-2.1", "send", "unknown", 10, 15, SENT.events, "one part of a burst")
    path = written(tmp_path, POLLED, announced, SENT, part, SENT, other)
    assert list(read_history(path)) == [POLLED, SENT, part, SENT, other]
    path = written(tmp_path / "killed", POLLED, announced)
    assert list(read_history(path)) == [POLLED, announced]


def test_a_file_belongs_to_one_process(tmp_path: Path) -> None:
    path = written(tmp_path, SENT)
    with pytest.raises(HistoryError, match=r"queue-send-2\.1\.jsonl exists: .* name of its own"):
        HistoryWriter(path)
    assert list(read_history(path)) == [SENT]


def test_what_was_written_survives_kill_nine(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tidelog.torture.history import HistoryWriter, Operation\n"
        "writer = HistoryWriter(Path(sys.argv[1]))\n"
        "writer.write(Operation('p', 'send', 'ok', 1, 2, [['send', 'k-0', [5], [0]]]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "p.jsonl"
    killed = subprocess.run([sys.executable, "-c", program, os.fspath(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(read_history(path)) == [Operation("p", "send", "ok", 1, 2, [["send", "k-0", [5], [0]]])]


def test_every_event_names_its_key_first() -> None:
    assert {name for name, parts in EVENTS.items() if parts[0] not in {"key", "keys"}} == set()
