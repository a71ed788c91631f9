"""Who writes: the names under which the attempts of a batch are told apart, and what a task reports to the driver.

What always holds: every attempt of a task writes under a transactional id of its own, `BASE-RUN-WORKER-N`: the base is
the query or the application, the run is one life of its driver, the worker is a process, and N is a number that the
process gives out. An id may serve again for a later batch of the same run, never for the same batch, because what an
earlier attempt wrote may be what the driver decides for.
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

NAME_BYTES = 6  # of a run and of a worker: random, and shown as twice as many hexadecimal digits
_NAME = rf"[0-9a-f]{{{2 * NAME_BYTES}}}"
_REMEMBERED_RUNS_MAX = 256


@dataclass(frozen=True, slots=True)
class WriteIdentity:
    """What is written: version `version` of `base`, by the run `run`. Without a version it is known to nobody else."""

    base: str
    run: str
    version: int | None
    # Of one write of a DataFrame in a batch; empty in streams, which write once a batch.
    write_id: str = ""
    # Whether base and version were taken from the streaming query around a batch write, and not given.
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
    """Its parts if it is one of this base's tasks, else None."""
    match = re.fullmatch(rf"{re.escape(base)}-({_NAME})-({_NAME})-(\d+)", transactional_id)
    return None if match is None else TaskName(match[1], match[2], int(match[3]))


def new_name() -> str:
    """A random name of a run or a worker."""
    return secrets.token_hex(NAME_BYTES)


def name_of(text: str) -> str:
    """The name of a run that others know by a longer text."""
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * NAME_BYTES]


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """What an attempt of a task says at its end."""

    identity: WriteIdentity | None  # None: at least once, there is nothing to decide
    partition: int
    rows: int
    transaction: HandedOver | None = None  # None: nothing was written, nothing is open
    topic: str = ""  # one that was written to
    began_ms: int = 0  # by the clock of the worker
    is_repeated: bool = False  # another attempt of the task may have been there, or may still be
    is_skipped: bool = False  # the batch was decided before
    is_second_write: bool = False  # another write of the same batch took the identity


class WorkerNames:
    """The transactional ids of this process: which were used for which version."""

    def __init__(self) -> None:
        self.worker = new_name()
        self.pid = os.getpid()
        self._numbers = itertools.count()
        self._used: OrderedDict[tuple[str, str], dict[int, int]] = OrderedDict()

    def claim(self, identity: WriteIdentity) -> str:
        """An id for one attempt: new, or one that an earlier version of the same run has done with."""
        version = identity.version or 0
        key = (identity.base, identity.run)
        used = self._used.setdefault(key, {})
        self._used.move_to_end(key)
        if len(self._used) > _REMEMBERED_RUNS_MAX:
            self._used.popitem(last=False)  # its numbers are not given out again, so nothing can be mixed up
        number = next((number for number, last in used.items() if last < version), None)
        if number is None:
            number = next(self._numbers)
        used[number] = version
        return identity.transactional_id(self.worker, number)


def first_identity(reports: Iterable[TaskReport | None]) -> WriteIdentity | None:
    """The identity that the reports of one batch share; None without any report, or where there is none to share."""
    return next((report.identity for report in reports if report is not None and report.identity is not None), None)
