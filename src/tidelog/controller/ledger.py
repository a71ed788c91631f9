"""The controller's side of the metadata store: election, and writes that only the elected controller can make.

What always holds: every write checks the controller epoch, so a deposed controller can change nothing; every key that
is written is also compared with the token it was last seen with; every record carries the nonce of the write that made
it. A write whose outcome the store could not tell is settled before anything else happens: the controller epoch's
record is rewritten, after which the lost write can no longer happen, then its nonce is looked for.

It knows nothing about what the records mean.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tidelog.common.light_dataclass import dataclass
from tidelog.common.steps import with_pauses
from tidelog.controller import layout
from tidelog.controller.layout import ControllerLocation, Record
from tidelog.metadata.store import (
    ABSENT,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Check,
    Conflict,
    Del,
    MetadataStoreError,
    Ok,
    Op,
    Put,
    Session,
    SessionLost,
    Store,
    Token,
    Unknown,
)

logger = logging.getLogger(__name__)

NONCE: Final = "nonce"
SETTLE_ATTEMPTS_MAX: Final = 200
"""How often to investigate an unknown outcome before giving up on the store.

With the pauses this takes some 20 s, far longer than a ZooKeeper ensemble needs to elect its next leader."""

SETTLE_PAUSE_S_MAX: Final = 0.1
_ELECTION_ATTEMPTS_MAX: Final = 10
_BATCH_BYTES_MAX: Final = VALUE_BYTES_MAX
"""Bytes per transaction: ZooKeeper accepts 1 MB per request, including keys and framing."""


class NotControllerError(Exception):
    """Another controller was elected, or this one's session is gone; nothing was written by this attempt."""

    def __init__(self, message: str, *, is_session_lost: bool = False) -> None:
        super().__init__(message)
        self.is_session_lost = is_session_lost


@dataclass(frozen=True, slots=True)
class Write:
    """A record to write; None removes it."""

    key: str
    record: Record | None


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: the store's revision after it, and each key with its value; None: it was removed."""

    revision: int
    values: Sequence[tuple[str, bytes | None]]


class Ledger:
    """Fenced access of one controller to the store; each election creates a new one."""

    def __init__(self, store: Store, epoch: int, tokens: Mapping[str, Token], elected_rev: int) -> None:
        self._store = store
        self.epoch = epoch
        # Whatever is read from now on is at least as new as this.
        self.elected_rev = elected_rev
        self._epoch_token = tokens[layout.CONTROLLER_EPOCH]
        self._controller_token = tokens[layout.CONTROLLER]
        self._tokens: dict[str, Token] = {}

    @classmethod
    async def elect(cls, store: Store, session: Session, location: ControllerLocation) -> Ledger | None:
        """Try to become controller, at that location (its epoch is decided here); None if another session is.

        A session that holds the role already, such as by an election whose outcome was unknown, gets it again under
        the next epoch. Raises NotControllerError if the session has ended or the store gives no clear answer.
        """
        for attempt in range(_ELECTION_ATTEMPTS_MAX):
            holder = await store.get(layout.CONTROLLER)
            if holder is not None and holder.owner != session.id:
                return None
            current = await store.get(layout.CONTROLLER_EPOCH)
            epoch = 1 if current is None else int(layout.decode(current.value)["epoch"]) + 1
            nonce = uuid.uuid4().hex
            record = {**layout.controller_record(location._replace(epoch=epoch)), NONCE: nonce}
            result = await store.txn(
                [
                    (layout.CONTROLLER, ABSENT if holder is None else holder.token),
                    (layout.CONTROLLER_EPOCH, ABSENT if current is None else current.token),
                ],
                [
                    Put(layout.CONTROLLER, layout.encode(record), owner=session.id),
                    Put(layout.CONTROLLER_EPOCH, layout.encode({"epoch": epoch, NONCE: nonce})),
                ],
            )
            if isinstance(result, Ok):
                return cls(store, epoch, result.tokens, result.rev)
            if isinstance(result, SessionLost):
                raise NotControllerError("the session for the election has ended", is_session_lost=True)
            # Another one was faster, or this attempt or the one before may have been carried out: look again.
            await asyncio.sleep(SETTLE_PAUSE_S_MAX * attempt / _ELECTION_ATTEMPTS_MAX)
        raise NotControllerError(f"the election was inconclusive: {result}")

    async def release(self) -> None:
        """Give the role up; without effect where another one has it already."""
        await self._store.txn([(layout.CONTROLLER, self._controller_token)], [Del(layout.CONTROLLER)])

    async def read(self, prefix: str) -> dict[str, Record]:
        """All records under a prefix; remembers their tokens for later writes."""
        records = {}
        async for key, rec in with_pauses((await self._store.list(prefix)).items()):
            self._tokens[key] = rec.token
            try:
                records[key] = layout.decode(rec.value)
            except ValueError as error:
                raise MetadataStoreError(f"the metadata record {key!r} can't be read: {error}") from error
        return records

    async def write(self, writes: Iterable[Write]) -> Written:
        """Write in order, in as many transactions as it takes.

        Raises NotControllerError, or MetadataStoreError, at the first transaction that fails; those before it stand.
        """
        rev = 0
        values: list[tuple[str, bytes | None]] = []
        nonce = uuid.uuid4().hex
        for ops in _batches(writes, nonce):
            rev = await self._write_batch(ops, nonce)
            values += [(op.key, op.value if isinstance(op, Put) else None) for op in ops]
        return Written(rev, values)

    async def _write_batch(self, ops: Sequence[Op], nonce: str) -> int:
        for _ in range(SETTLE_ATTEMPTS_MAX):
            checks: list[Check] = [(op.key, self._tokens.get(op.key, ABSENT)) for op in ops]
            result = await self._store.txn([(layout.CONTROLLER_EPOCH, self._epoch_token), *checks], ops)
            if isinstance(result, Unknown):
                logger.warning("metadata write %s has an unknown outcome: %s", nonce, result.reason)
                result = await self._settle(ops, nonce)
            if isinstance(result, Ok):
                self._remember(ops, result.tokens)
                return result.rev
            if not isinstance(result, Unknown):
                raise NotControllerError(f"controller epoch {self.epoch} was refused: {result}")
        raise MetadataStoreError("the metadata store keeps losing track of a write; is it reachable?")

    def _remember(self, ops: Sequence[Op], tokens: Mapping[str, Token]) -> None:
        for op in ops:
            if isinstance(op, Put):
                self._tokens[op.key] = tokens[op.key]
            else:
                self._tokens.pop(op.key, None)

    async def _settle(self, ops: Sequence[Op], nonce: str) -> Ok | Unknown:
        """Whether a write happened. Unknown means that it did not, and no longer can: do it again."""
        rev = await self._fence()
        tokens: dict[str, Token] = {}
        for op in ops:
            # A transaction happens as a whole, so the first record that is not as written tells of all.
            rec = await self._store.get(op.key)
            if isinstance(op, Put):
                if rec is None or layout.decode(rec.value).get(NONCE) != nonce:
                    return Unknown()
                tokens[op.key] = rec.token
            elif rec is not None:
                return Unknown()
        return Ok(rev, tokens)

    async def _fence(self) -> int:
        """Rewrite the controller epoch's record, so that a write sent before can no longer happen."""
        for attempt in range(SETTLE_ATTEMPTS_MAX):
            record = layout.encode({"epoch": self.epoch, NONCE: uuid.uuid4().hex})
            result = await self._store.txn(
                [(layout.CONTROLLER_EPOCH, self._epoch_token)], [Put(layout.CONTROLLER_EPOCH, record)]
            )
            if isinstance(result, Ok):
                self._epoch_token = result.tokens[layout.CONTROLLER_EPOCH]
                return result.rev
            if isinstance(result, Conflict):
                # Either an attempt before went through after all, or there is a new controller with a new epoch.
                rec = await self._store.get(layout.CONTROLLER_EPOCH)
                if rec is None or layout.decode(rec.value)["epoch"] != self.epoch:
                    raise NotControllerError(f"controller epoch {self.epoch} has ended")
                if rec.token != self._epoch_token:
                    self._epoch_token = rec.token
                    continue
            await asyncio.sleep(min(SETTLE_PAUSE_S_MAX, 0.001 * (1 + attempt)))
        raise MetadataStoreError("the metadata store keeps losing track of writes; is it reachable?")


def _batches(writes: Iterable[Write], nonce: str) -> Iterator[list[Op]]:
    """Transactions as large as the store takes; one operation is left for the check of the controller epoch."""
    batch: list[Op] = []
    size_bytes = 0
    for write in writes:
        op: Op = Del(write.key)
        op_bytes = 0
        if write.record is not None:
            value = layout.encode({**write.record, NONCE: nonce})
            op, op_bytes = Put(write.key, value), len(value)
        if batch and (len(batch) == OPERATIONS_MAX - 1 or size_bytes + op_bytes > _BATCH_BYTES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(op)
        size_bytes += op_bytes
    if batch:
        yield batch
