"""The kinds of anomalies, each with a sentence for readers of a report who have never seen one.

The checker finds most kinds in histories (`anomalies` has the exact rules). Those in `OF_THE_RUN` are found by the run
itself, where no history shows them.
"""

from __future__ import annotations

from typing import Final

STUCK_CONSUMER: Final = "stuck-consumer"
NOT_HEALED: Final = "not-healed"
REPLICAS_DIFFER: Final = "replicas-differ"
WORKLOAD_FAILED: Final = "workload-failed"

OF_THE_RUN: Final = {
    STUCK_CONSUMER: "A client did not get to the end of its work, although everything had been healed, all replicas "
    "were in sync, and nothing moved any more.",
    NOT_HEALED: "After all faults had been undone, a server did not come back, or replicas did not get in sync.",
    REPLICAS_DIFFER: "Two replicas of one partition hold different bytes below the high watermark.",
    WORKLOAD_FAILED: "A workload could not go on: a client ended with an error that it should not have got.",
}

OF_HISTORIES: Final = {
    "lost-write": "A record was acknowledged, or read, and is not in the log at the end.",
    "duplicate": "A record that was sent once is in the log twice.",
    "inconsistent-offset": "Two different records were seen at one offset of a partition.",
    "nonmonotonic-send": "Records are in the log in another order than the one in which they were sent.",
    "phantom": "A record was read that nobody had sent.",
    "unseen": "A record is in the log, and no reader got it, although they read beyond it.",
    "reordered-poll": "A reader got a record that lies before one that it had got already.",
    "skipped-poll": "A reader read on and left out a record in between.",
    "aborted-read": "A record was read whose send had failed, or whose transaction had been aborted.",
    "G0": "Dirty write: a transaction that began after another had committed has written before it.",
    "G1a": "Aborted read: a transaction read a value of another one that was aborted.",
    "G1b": "Intermediate read: a transaction read some writes of another one and not the rest.",
    "G1c": "Circular information flow: each of some transactions read something that the one before it committed.",
    "stale-table": "A reader of a compacted table got an older value of a row than had been acknowledged.",
    "lost-update-of-table": "The last value of a row of a compacted table is gone.",
    "two-owners": "Two members of a group owned a partition at the same time, and both committed offsets for it.",
    "commit-went-back": "The committed offset of a group went back by itself.",
    "watermark-went-back": "The high watermark of a partition was lower than it had been, or than what had been read.",
    "copy-lost": "An exactly-once copy of a topic lacks a record.",
    "copy-duplicate": "An exactly-once copy of a topic has a record twice.",
    "copy-reordered": "An exactly-once copy of a topic has records in another order than the topic.",
}


def meaning_of(kind: str) -> str:
    """What this kind of anomaly is; nothing for a kind that another version found."""
    return OF_HISTORIES.get(kind) or OF_THE_RUN.get(kind, "")
