"""The contract of the metadata store: a small tree of values with compare-and-set, watches and sessions.

What always holds, whatever store is behind it:
- A transaction is atomic and durable once it is Ok. One that ended Unknown may have happened, may happen until the next
  successful write of the same client, or may never happen: values carry a nonce of their writer, so that it can tell.
- A read is a hint; only a compare-and-set decides. After a successful write or `barrier()` a client's reads are at
  least as new as that write.
- A watch says "look again": changes in between are lost, the last state is always seen, revisions never go back.
- Safety never rests on a session: its end is noticed late, and its owner may be the last to know.

Both SQLite and ZooKeeper can meet this contract, so callers never delete and recreate a key that they compare:
ZooKeeper would accept an old token for it again. They leave a tombstone instead.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import field
from typing import Final, Literal, Protocol, TypeAlias

from tidelog.common.light_dataclass import dataclass

VALUE_BYTES_MAX: Final = 512 * 1024
"""ZooKeeper accepts 1 MB per request by default; half of that leaves room for the rest of a transaction."""

OPERATIONS_MAX: Final = 100
"""Operations per transaction, including checks; checking a key that is also written doesn't count twice."""

KEY_LENGTH_MAX: Final = 512


class MetadataStoreError(Exception):
    """The store can't do its work; the text is for the person who runs the broker."""


class Absent(enum.Enum):
    """The token of a key that must not exist."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
Token: TypeAlias = int
Check: TypeAlias = tuple[str, Token | Literal[Absent.ABSENT]]


@dataclass(frozen=True, slots=True)
class Rec:
    """A key's value. `token` changes with every write, `created` (the fencing token) only when the key is created."""

    value: bytes
    token: Token
    rev: int
    created: int
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Write a value. With an owner, the key is removed with that session; it must be new or already owned by it."""

    key: str
    value: bytes
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Del:
    """Remove a key; removing a key that doesn't exist is not an error."""

    key: str


Op: TypeAlias = Put | Del


@dataclass(frozen=True, slots=True)
class Ok:
    """The transaction happened, at this revision; `tokens` are those of the keys it put."""

    rev: int
    tokens: Mapping[str, Token] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Nothing happened, because this key doesn't have the expected token."""

    key: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It is not known whether the transaction happened."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class SessionLost:
    """Nothing happened, because the session that should own a key has ended."""

    session_id: str


TxnResult: TypeAlias = Ok | Conflict | Unknown | SessionLost


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything under a prefix, as of one revision of the store."""

    rev: int
    records: Mapping[str, Rec]


class Session(Protocol):
    """Proof that its owner is alive, renewed in the background until it is closed or lost."""

    @property
    def id(self) -> str: ...

    @property
    def lost(self) -> asyncio.Event:
        """Set once the session can no longer be relied on: refused by the store, or past its own deadline."""
        ...

    @property
    def deadline_ms(self) -> float:
        """When it ends by the owner's monotonic clock: when the last successful heartbeat was sent, plus the ttl."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it is lost or past its deadline as of now: `lost` may be set a turn of the event loop later."""
        ...

    async def close(self) -> None:
        """End it and remove the keys it owns."""
        ...


class Store(Protocol):
    """What the controller and the brokers need from a metadata store.

    A prefix that ends with "/" means everything below, an empty one everything, and any other just the key of that
    name.
    """

    async def get(self, key: str) -> Rec | None: ...

    async def list(self, prefix: str) -> Mapping[str, Rec]: ...

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        """Do all operations if every check passes, otherwise none."""
        ...

    def watch(self, prefix: str) -> AsyncGenerator[Snapshot, None]:
        """Snapshots of what is under a prefix: one at once, then one after changes."""
        ...

    async def session(self, ttl_ms: float) -> Session: ...

    async def barrier(self) -> int:
        """A write that changes nothing but the revision, which it returns; later reads are at least as new."""
        ...

    async def close(self) -> None: ...


def check_key(key: str) -> None:
    """Raises ValueError for a key that some store couldn't have."""
    if not key or len(key) > KEY_LENGTH_MAX or "" in key.split("/") or not key.isprintable():
        raise ValueError(
            f"{key[:80]!r} can't be a key: 1 to {KEY_LENGTH_MAX} printable characters, "
            "parts separated by single slashes, none at either end"
        )


def check_txn(checks: Sequence[Check], ops: Sequence[Op]) -> None:
    """Raises ValueError for a transaction that stores needn't accept."""
    written = [op.key for op in ops]
    checked = [key for key, _ in checks]
    for keys, what in ((written, "written"), (checked, "checked")):
        for key in keys:
            check_key(key)
        if len(set(keys)) != len(keys):
            raise ValueError(
                f"a key is {what} twice in one transaction: {sorted(k for k in keys if keys.count(k) > 1)}"
            )
    count = len(set(written) | set(checked))
    if count > OPERATIONS_MAX:
        raise ValueError(f"{count} operations in one transaction; at most {OPERATIONS_MAX} are allowed")
    for op in ops:
        if isinstance(op, Put) and len(op.value) > VALUE_BYTES_MAX:
            raise ValueError(
                f"the value of {op.key!r} has {len(op.value)} bytes; at most {VALUE_BYTES_MAX} are allowed"
            )


def matches(prefix: str, key: str) -> bool:
    """Whether a key is under a prefix as `Store` defines it."""
    return key.startswith(prefix) if not prefix or prefix.endswith("/") else key == prefix
