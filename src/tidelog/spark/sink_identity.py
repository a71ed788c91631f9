"""The names that distinguish the attempts of a batch, and the report that a task sends to the driver.

What always holds: every attempt of a task writes under its own transactional id, `BASE-RUN-WORKER-N`. The base is the
query or the application, the run is one lifetime of its driver, the worker is a process, and N is a number assigned by
that process. An id may be reused in a later batch of the same run, but never in the same batch, because the driver may
still decide for what the earlier attempt wrote.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from tidelog.client.producer.handover import HandedOver

NAME_BYTES = 6  # of a run or a worker, shown as 12 hexadecimal digits
_NAME = rf"[0-9a-f]{{{2 * NAME_BYTES}}}"
_REMEMBERED_RUNS_MAX = 256


@dataclass(frozen=True, slots=True)
class WriteIdentity:
    """What is written: version `version` of `base`, by run `run`. Without a version, a repeat can't be recognized."""

    base: str
    run: str
    version: int | None
    # Identifies one write of a DataFrame in a batch; empty in streams, which write once per batch.
    write_id: str = ""
    # Whether base and version were not given, but taken from the streaming query around a batch write.
    is_implied: bool = False

    def transactional_id(self, worker: str, number: int) -> str:
        return f"{self.base}-{self.run}-{worker}-{number}"

    def __str__(self) -> str:
        return self.base if self.version is None else f"{self.base}, version {self.version}"


class TaskName(NamedTuple):
    """The parts of a transactional id that follow the base."""

    run: str
    worker: str
    number: int

    def of(self, base: str) -> str:
        return f"{base}-{self.run}-{self.worker}-{self.number}"


def parse_transactional_id(base: str, transactional_id: str) -> TaskName | None:
    """The parts of the id if it belongs to a task of this base, otherwise None."""
    match = re.fullmatch(rf"{re.escape(base)}-({_NAME})-({_NAME})-(\d+)", transactional_id)
    return None if match is None else TaskName(match[1], match[2], int(match[3]))


def new_name() -> str:
    """A random name for a run or a worker."""
    return secrets.token_hex(NAME_BYTES)


def name_of(text: str) -> str:
    """A short name for a run, derived from a longer text that identifies it."""
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * NAME_BYTES]


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """What an attempt of a task reports when it is done."""

    identity: WriteIdentity | None  # None: at least once, so there is nothing to decide
    partition: int
    rows: int
    transaction: HandedOver | None = None  # None: nothing was written, nothing is open
    topic: str = ""  # one of the topics written to
    began_ms: int = 0  # by the clock of the worker
    is_repeated: bool = False  # another attempt of the task may have run, or may still be running
    is_skipped: bool = False  # the batch had already been decided
    is_second_write: bool = False  # another write of the same batch took the identity


class WorkerNames:
    """The transactional ids of this process, and the versions they were last used for."""

    def __init__(self) -> None:
        self.worker = new_name()
        self.pid = os.getpid()
        self._numbers = itertools.count()
        self._used: OrderedDict[tuple[str, str], dict[int, int]] = OrderedDict()

    def claim(self, identity: WriteIdentity) -> str:
        """An id for one attempt: a new one, or one that an earlier version of the same run no longer needs."""
        version = identity.version or 0
        key = (identity.base, identity.run)
        used = self._used.setdefault(key, {})
        self._used.move_to_end(key)
        if len(self._used) > _REMEMBERED_RUNS_MAX:
            self._used.popitem(last=False)  # its numbers are never reused, so nothing can be mixed up
        number = next((number for number, last in used.items() if last < version), None)
        if number is None:
            number = next(self._numbers)
        used[number] = version
        return identity.transactional_id(self.worker, number)


def first_identity(reports: Iterable[TaskReport | None]) -> WriteIdentity | None:
    """The identity shared by the reports of one batch, or None if they have none."""
    return next((report.identity for report in reports if report is not None and report.identity is not None), None)
