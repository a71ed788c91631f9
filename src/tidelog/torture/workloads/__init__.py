"""The workloads of a torture: what clients do while things break.

Each is a class with worker processes of its own (`tidelog.torture.workers`), driven in the same way: `prepare`,
`start`, `supervise` about once a second, `finish`, `close`. What the workers write is in the histories that the checker
reads.
"""

from __future__ import annotations

from typing import Final

from tidelog.torture.workloads.append import AppendWorkload
from tidelog.torture.workloads.copy import CopyWorkload
from tidelog.torture.workloads.handover import HandoverWorkload
from tidelog.torture.workloads.place import Notes, Place, Progress, StuckError, Workload, WorkloadError
from tidelog.torture.workloads.probe import ProbeWorkload
from tidelog.torture.workloads.queue import QueueWorkload
from tidelog.torture.workloads.table import TableWorkload
from tidelog.torture.workloads.transactions import TransactionsWorkload

__all__ = ["WORKLOADS", "Notes", "Place", "Progress", "StuckError", "Workload", "WorkloadError"]

WORKLOADS: Final[dict[str, type[Workload]]] = {
    "queue": QueueWorkload,
    "transactions": TransactionsWorkload,
    "append": AppendWorkload,
    "table": TableWorkload,
    "handover": HandoverWorkload,
    "copy": CopyWorkload,
    "probe": ProbeWorkload,
}
