"""The kinds of faults, and what each of them takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FAULT_KINDS: Final[Mapping[str, str]] = {
    "kill": "a broker is killed (kill -9) and started again",
    "kill-two": "two brokers are killed at once and started again",
    "kill-controller": "the broker that is the controller is killed and started again",
    "pause": "a broker hangs (SIGSTOP) and goes on (SIGCONT)",
    "stop-start": "a broker is stopped in order and started again",
    "rolling-restart": "all brokers are restarted one by one",
    "cut-halves": "the network is cut in two halves",
    "cut-bridge": "the network is cut in two halves, and one broker sees both",
    "cut-one-way": "what a server sends to some others is lost, and what they send gets through",
    "cut-flapping": "the network is cut in two halves and mended, over and over",
    "cut-from-store": "a broker reaches the other brokers, but neither store nor controllers of the metadata",
    "slow-link": "what a broker sends and gets is slow",
    "full-disk": "the disk of a broker is full",
    "failing-disk": "the disk of a broker fails: it can't be written to, and loses what was not flushed",
    "slow-disk": "the disk of a broker stalls, over and over",
    "clock-jump": "the wall clock of a broker jumps, up to three quarters of an hour ahead or back",
    "kill-store": "a ZooKeeper server is killed and started again",
    "pause-store": "a ZooKeeper server hangs and goes on",
    "cut-store": "a ZooKeeper server is cut off from the others, and from some brokers",
    "reassign": "a partition loses a replica, or moves, and gets it back",
    "elect": "preferred leaders are elected",
    "kill-client": "a client of a workload is killed and started again",
}

NETWORK_KINDS: Final = frozenset(
    {"cut-halves", "cut-bridge", "cut-one-way", "cut-flapping", "cut-from-store", "slow-link", "cut-store"}
)
DISK_KINDS: Final = frozenset({"full-disk", "failing-disk", "slow-disk"})
CLOCK_KINDS: Final = frozenset({"clock-jump"})
STORE_KINDS: Final = frozenset({"kill-store", "pause-store", "cut-store"})
FOREIGN_KINDS: Final = frozenset({"reassign", "elect", "kill-client"})
"""What can be done by requests alone, and to clients."""

_TWO_BROKERS: Final = frozenset({"cut-halves", "cut-one-way", "cut-flapping", "reassign", "failing-disk", "elect"})
_THREE_BROKERS: Final = frozenset({"kill-two", "cut-bridge"})


def at_least(kind: str) -> int:
    """How many brokers a kind of fault takes."""
    return 3 if kind in _THREE_BROKERS else 2 if kind in _TWO_BROKERS else 1
