"""How fast histories are checked: sends in bursts, read by two pollers and the final reads.

    python benchmarks/torture_checker.py [--sends 10000000] [--burst 200] [--transactions]

Writes the histories to a temporary directory (about 100 bytes for each send), checks them in a process of its own, and
tells the time and the peak of memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidelog.torture.checker import check
from tidelog.torture.history import HistoryWriter, Operation

PARTITIONS = 8
SENDERS = 4
POLL_RECORDS = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sends", type=int, default=10_000_000)
    parser.add_argument("--burst", type=int, default=200)
    parser.add_argument("--transactions", action="store_true", help="each burst is a transaction")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        started_s = time.monotonic()
        write_histories(Path(place), options.sends, options.burst, options.transactions)
        print(f"wrote {size_of(Path(place)) / 1e6:,.0f} MB in {time.monotonic() - started_s:.1f} s", flush=True)
        process = multiprocessing.get_context("spawn").Process(target=check_all, args=(place,))
        process.start()
        process.join()
        raise SystemExit(process.exitcode)


def check_all(place: str) -> None:
    checked = check("queue", sorted(Path(place).glob("*.jsonl")))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for name, count in sorted(checked.counts.items()):
        print(f"{name:30} {count:>14,}")
    print(f"checked in {checked.seconds:.1f} s with at most {peak_mb:,.0f} MB; anomalies: {checked.found or 'none'}")


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def write_histories(directory: Path, sends: int, burst: int, transactions: bool) -> None:
    """Senders take turns; each burst is one contiguous run of one partition, with a marker after a transaction."""
    logs: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
    ends = [0] * PARTITIONS
    writers = [HistoryWriter(directory / f"queue-send-{number}.jsonl") for number in range(SENDERS)]
    sent, turn, now_ns = [0] * SENDERS, 0, 0
    while sum(sent) < sends:
        sender, partition = turn % SENDERS, (turn // SENDERS + turn) % PARTITIONS
        values = [(sender << 32) + sent[sender] + number + 1 for number in range(burst)]
        offsets = list(range(ends[partition], ends[partition] + burst))
        event: list[Any] = ["send", f"queue-{partition}", values, offsets]
        f = "txn" if transactions else "send"
        writers[sender].write(Operation("", f, "ok", now_ns, now_ns + 50_000, [event]))
        logs[partition] += zip(offsets, values, strict=True)
        ends[partition] += burst + transactions
        sent[sender] += burst
        turn, now_ns = turn + 1, now_ns + 20_000
    for process, f in (
        ("queue-assign-0", "poll"),
        ("queue-assign-uncommitted-0", "poll"),
        ("queue-final", "final"),
        ("queue-final-uncommitted", "final-uncommitted"),
    ):
        with HistoryWriter(directory / f"{process}.jsonl") as writer:
            for number, event in enumerate(polls(logs)):
                at_ns = now_ns + number * 1_000
                writer.write(Operation("", f, "ok", at_ns, at_ns + 900, [event]))
    for writer in writers:
        writer.close()


def polls(logs: list[list[tuple[int, int]]]) -> Iterator[list[Any]]:
    for partition, log in enumerate(logs):
        for first in range(0, len(log), POLL_RECORDS):
            records = log[first : first + POLL_RECORDS]
            yield ["poll", f"queue-{partition}", [offset for offset, _ in records], [value for _, value in records]]


if __name__ == "__main__":
    main()
