"""The check of a workload's histories: reads them, has each subject checked, and collects the anomalies.

`anomalies` says what is looked for, and by which rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tidelog.torture.anomalies import Checked, Findings
from tidelog.torture.check_columns import read_columns
from tidelog.torture.check_copy import check_copies, mark_copies
from tidelog.torture.check_groups import GroupCheck, check_out_of_range
from tidelog.torture.check_log import Log, LogCheck, final_log
from tidelog.torture.check_readers import ReaderCheck, check_unread
from tidelog.torture.check_table import TableCheck
from tidelog.torture.check_transactions import TransactionCheck

COPY: Final = "copy"


def check(workload: str, histories: Sequence[Path], progress: Callable[[str], None] | None = None) -> Checked:
    """Check all histories of a workload; raises HistoryError if one of them is damaged.

    `progress` is called with a line now and then. In the workload "copy", topics that are only copied to are checked
    against the one that is sent to; otherwise only what the histories contain decides about what is checked.
    """
    started_s = time.monotonic()
    tell = progress or (lambda _: None)
    columns = read_columns(histories, tell)
    findings = Findings(columns.operations.load)
    if workload == COPY:
        mark_copies(columns)
    logs: dict[str, Log] = {}
    for number, (key, partition) in enumerate(columns.partitions.items(), 1):
        log = logs[key] = final_log(partition, findings)
        LogCheck(columns, partition, log, findings).run()
        ReaderCheck(columns, partition, log, findings).run()
        GroupCheck(columns, partition, log, findings).run()
        TableCheck(columns, partition, findings).run()
        log.forget_indexes()
        tell(f"checked {number} of {len(columns.partitions)} partitions")
    check_unread(columns, logs, findings)
    check_out_of_range(columns, findings)
    TransactionCheck(columns, logs, findings).run()
    if workload == COPY:
        check_copies(columns, logs, findings)
    tell("checked all transactions")
    columns.counts["partitions"] = len(columns.partitions)
    seconds = time.monotonic() - started_s
    return Checked(workload, tuple(findings.anomalies), dict(findings.found), dict(columns.counts), seconds)
