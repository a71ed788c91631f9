"""The metadata store in ZooKeeper: for brokers on many machines.

What always holds: a transaction is one ZooKeeper `multi`, which also writes the node `revision`, so that its zxid is
known and counts as the store's revision. A token is made of the zxid that created the node and its version; ZooKeeper
itself compares the version only, which is why callers never delete and recreate a key that they compare. Each session
of the store is a ZooKeeper session with a connection of its own: a connection that is lost ends nothing, and only the
ensemble's word or the session's own deadline does. Heartbeats are writes, because a deposed ZooKeeper leader still
answers reads. A transaction whose connection is lost has an unknown outcome.

Keys become nodes of two levels, `records/<first part>:/<the rest, escaped>`, so that no parent has to be created or
removed with a key. ZooKeeper lists a level in one response of at most `jute.maxbuffer` bytes, 1 MB by default: enough
for some 20,000 topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableSequence, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry

from tidelog.common.light_dataclass import dataclass
from tidelog.metadata.lease import HEARTBEATS_PER_TTL, Lease
from tidelog.metadata.liveness import boot_time_ms
from tidelog.metadata.sql_thread import SqlThread
from tidelog.metadata.store import (
    ABSENT,
    Absent,
    Check,
    Conflict,
    MetadataStoreError,
    Ok,
    Op,
    Put,
    Rec,
    SessionLost,
    Snapshot,
    Token,
    TxnResult,
    Unknown,
    check_key,
    check_txn,
)
from tidelog.metadata.watching import Changes

logger = logging.getLogger(__name__)

# kazoo logs each attempt to connect, several a second. This store says itself when the connection comes and goes.
_kazoo_logger: Final = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.setLevel(logging.ERROR)

SCHEME: Final = "zookeeper://"

CONNECT_TIMEOUT_S: Final = 10.0
"""How long a start waits for the ensemble: it may be electing a leader."""

_SILENT_S: Final = 1.0
"""After so long a start says what it is waiting for."""

CALL_TIMEOUT_S: Final = 10.0
"""How long a call waits while the connection is away, before its outcome counts as unknown."""

_CLIENT_SESSION_S: Final = 10.0
"""The session of the connection that reads and writes. It owns no node, so its end harms nobody."""

_SERVER_TIMEOUT_S_MIN: Final = 0.5
"""The shortest time to wait for a server to take a connection, however many servers and however short the session."""

_FAREWELL_S: Final = 1.0
"""How long the end of a session waits for the ensemble to hear of it. It is told later where it is away for longer."""

_LOOK_AGAIN_MS: Final = 1_000.0
"""How often watches look by themselves: a safety net, since ZooKeeper tells of changes at once."""

_ANY_VERSION: Final = -1
_VERSION_BITS: Final = 32
_ATTEMPTS_MAX: Final = 5
_RECORDS: Final = "records"
_REVISION: Final = "revision"
_SESSIONS: Final = "sessions"

# The ensemble did not answer; a write among these may have happened.
_NO_ANSWER: Final = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    OperationTimeoutError,
    KazooTimeoutError,
    TimeoutError,
)

_T = TypeVar("_T")


class ZooKeeperAddress(NamedTuple):
    """Where an ensemble is: `zookeeper://host:port,host:port/chroot`."""

    hosts: str
    chroot: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.hosts}{self.chroot}"


def parse_address(text: str) -> ZooKeeperAddress:
    """Raises ValueError that says what would be right."""
    hosts, slash, path = text.removeprefix(SCHEME).partition("/")
    example = "zookeeper://host1:2181,host2:2181,host3:2181/tidelog"
    if not text.startswith(SCHEME) or not hosts:
        raise ValueError(f"{text!r} is not the address of a ZooKeeper ensemble, such as {example}")
    for host in hosts.split(","):
        name, colon, port = host.rpartition(":")
        if not name or not colon or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{host!r} is not HOST:PORT; a ZooKeeper ensemble looks like {example}")
    path = path.rstrip("/")
    if slash and any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise ValueError(f"'/{path}' can't be a path in ZooKeeper; an ensemble looks like {example}")
    return ZooKeeperAddress(hosts, f"/{path}" if path else "")


class ZooKeeperStore:
    """A `Store` in a ZooKeeper ensemble, which `open` or the first use connects to."""

    def __init__(self, address: ZooKeeperAddress, *, clock_ms: Callable[[], float] = boot_time_ms) -> None:
        self._address = address
        self._clock_ms = clock_ms
        self._client: KazooClient | None = None
        self._connecting: asyncio.Task[KazooClient] | None = None
        self._is_closed = False
        self._directories: set[str] = set()
        self._sessions: dict[str, _ZooKeeperSession] = {}
        # Ends of sessions that the ensemble has still to be told of.
        self._farewells: set[asyncio.Task[None]] = set()
        self._has_to_end = asyncio.Event()
        # Sends heartbeats, which wait for the ensemble.
        self._thread = SqlThread("metadata")
        self._changes = Changes(self._look_again, _LOOK_AGAIN_MS)

    async def open(self) -> None:
        """Connect; raises MetadataStoreError when the ensemble can't be reached."""
        await self._connected()

    async def get(self, key: str) -> Rec | None:
        check_key(key)
        return await self._read(key)

    async def list(self, prefix: str) -> Mapping[str, Rec]:
        return (await self._snapshot(prefix)).records

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        check_txn(checks, ops)
        client = await self._connected()
        owners = {op.owner for op in ops if isinstance(op, Put) and op.owner is not None}
        if len(owners) > 1:
            raise ValueError(f"a transaction can't write for several sessions: {sorted(owners)}")
        for owner in owners:
            session = self._sessions.get(owner)
            if session is None or session.lease.lost.is_set():
                return SessionLost(owner)
            client = session.client
        try:
            for _ in range(_ATTEMPTS_MAX):
                multi = await self._plan(client, checks, ops)
                if isinstance(multi, Conflict):
                    return multi
                result = await self._commit(multi)
                # A key that nobody compares came or went since it was looked at: look again.
                if not isinstance(result, _Moved):
                    break
            else:
                return Unknown("the keys keep changing")
            if owners and isinstance(result, Ok):
                # The session's connection may be to another server than the one that reads are from, which may not
                # know of this write yet. It does once it has answered a later one.
                await self.barrier()
        except MetadataStoreError as error:
            return Unknown(str(error))
        if isinstance(result, Ok):
            self._changes.announce([op.key for op in ops])
        return result

    def watch(self, prefix: str) -> AsyncGenerator[Snapshot, None]:
        loop = asyncio.get_running_loop()

        def on_event(_: WatchedEvent) -> None:
            # In a thread of kazoo's. It also comes when the connection ends, after which changes may be missed.
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody watches any more
                loop.call_soon_threadsafe(self._changes.announce, None)

        return self._changes.watch(prefix, lambda: self._snapshot(prefix, on_event))

    async def session(self, ttl_ms: float) -> Lease:
        await self._connected()
        sent_ms = self._clock_ms()
        client = self._make_client(ttl_ms / 1000)
        await _in_thread(lambda: self._start_client(client))
        assert client.client_id is not None  # it is connected
        session_id = _session_id(client.client_id[0])
        path = self._path(_SESSIONS, session_id)
        await _result(client.create_async(path, b"", ephemeral=True, makepath=True))
        lease = Lease(session_id, ttl_ms, self, self._clock_ms, sent_ms)
        self._sessions[session_id] = _ZooKeeperSession(client, lease, path, ttl_ms / 1000 / HEARTBEATS_PER_TTL)
        loop = asyncio.get_running_loop()

        def on_state(state: str) -> bool | None:
            # SUSPENDED is not LOST: the session goes on if the connection comes back in time.
            if state == KazooState.LOST:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(lease.lost.set)
                return True
            return None

        client.add_listener(on_state)
        return lease

    async def barrier(self) -> int:
        client = await self._connected()
        stat = await self._answer(client.set_async(self._path(_REVISION), b""))
        return int(stat.mzxid)

    async def close(self) -> None:
        self._changes.close()
        if self._is_closed:
            return
        self._is_closed = True
        self._thread.shutdown()
        self._has_to_end.set()
        clients = [session.client for session in self._sessions.values()]
        if self._connecting is not None:
            with contextlib.suppress(MetadataStoreError):
                clients.append(await self._connecting)
        await asyncio.gather(_in_thread(lambda: _stop(*clients)), *self._farewells)

    # Sessions, for `Lease`

    def renew_session(self, session_id: str) -> bool:
        """Called in the store's thread."""
        session = self._sessions.get(session_id)
        if session is None:
            return False
        try:
            # A write: a server that was cut off from the others answers reads as if nothing had happened.
            session.client.set_async(session.path, b"").get(timeout=session.heartbeat_timeout_s)
        except (NoNodeError, SessionExpiredError):
            return False
        except (*_NO_ANSWER, KazooException) as error:
            raise MetadataStoreError(f"ZooKeeper at {self._address.hosts} does not answer: {_reason(error)}") from error
        return True

    def repeat(self, call: Callable[[], object], interval_s: float) -> Callable[[], None]:
        return self._thread.repeat(call, interval_s)

    def run(self, call: Callable[[], _T]) -> Awaitable[_T]:
        return asyncio.wrap_future(self._thread.submit(call))

    async def end_session(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        farewell = asyncio.get_running_loop().create_task(self._say_farewell(session.client))
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)
        await asyncio.wait((farewell,), timeout=_FAREWELL_S)
        self._changes.announce(None)

    async def _say_farewell(self, client: KazooClient) -> None:
        """End a session, once its connection is back.

        A session that nobody ends lasts for its whole time again after the ensemble has elected a leader, and what it
        owns would block its next owner as long.
        """
        loop = asyncio.get_running_loop()
        is_heard = asyncio.Event()

        def on_state(state: str) -> None:
            if state != KazooState.SUSPENDED:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(is_heard.set)

        client.add_listener(on_state)
        if client.state == KazooState.SUSPENDED:
            waits = [asyncio.ensure_future(event.wait()) for event in (is_heard, self._has_to_end)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        try:
            await _in_thread(lambda: _stop(client))
        except KazooException as error:
            logger.warning("a session with ZooKeeper is left to end by itself: %s", _reason(error))

    # Connections

    async def _connected(self) -> KazooClient:
        """The connection that everything but sessions uses."""
        if self._is_closed:
            raise MetadataStoreError(f"the metadata store {self._address} is closed")
        if self._client is not None:
            return self._client
        if self._connecting is None or (self._connecting.done() and self._connecting.exception() is not None):
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> KazooClient:
        client = self._make_client(_CLIENT_SESSION_S)
        await _in_thread(lambda: self._start_client(client))
        client.add_listener(self._log_state)
        try:
            for name in (_RECORDS, _REVISION, _SESSIONS):
                await _result(client.ensure_path_async(self._path(name)))
        except (*_NO_ANSWER, KazooException) as error:
            await _in_thread(lambda: _stop(client))
            raise MetadataStoreError(f"can't use ZooKeeper at {self._address.hosts}: {_reason(error)}") from error
        self._client = client
        return client

    def _make_client(self, session_s: float) -> KazooClient:
        # Half of the session is for servers that are dark; the other half is for the heartbeats before and after.
        connect_timeout_s = max(_SERVER_TIMEOUT_S_MIN, session_s / 2 / len(self._address.hosts.split(",")))
        return KazooClient(
            hosts=self._address.hosts,
            timeout=session_s,
            handler=_ImpatientHandler(connect_timeout_s),
            logger=_kazoo_logger,
            # Connections are tried again for ever; what a call may wait is up to the call.
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, ignore_expire=False),
        )

    def _start_client(self, client: KazooClient) -> None:
        is_connected = client.start_async()
        if not is_connected.wait(_SILENT_S):
            hosts = self._address.hosts
            logger.info("waiting for ZooKeeper at %s, for up to %g s", hosts, CONNECT_TIMEOUT_S)
            if not is_connected.wait(CONNECT_TIMEOUT_S - _SILENT_S):
                _stop(client)
                raise MetadataStoreError(
                    f"can't reach ZooKeeper at {hosts} within {CONNECT_TIMEOUT_S:g} s; start it, for example "
                    "with `tidelog zookeeper`, or correct --metadata"
                )

    def _log_state(self, state: str) -> None:
        """Called in a thread of kazoo's."""
        if state == KazooState.SUSPENDED:
            logger.warning("lost the connection to ZooKeeper at %s; reconnecting", self._address.hosts)
        elif state == KazooState.CONNECTED:
            logger.info("connected to ZooKeeper at %s again", self._address.hosts)

    async def _answer(self, result: IAsyncResult) -> Any:
        """Wait for an answer; raises MetadataStoreError where there is none, and KazooException where it is a no."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await _result(result)
        except _NO_ANSWER as error:
            raise MetadataStoreError(f"ZooKeeper at {self._address.hosts} does not answer: {_reason(error)}") from error

    # Nodes

    def _path(self, *names: str) -> str:
        return "/".join((self._address.chroot, *names))

    def _record_path(self, key: str) -> str:
        first, slash, rest = key.partition("/")
        if not slash:
            return self._path(_RECORDS, _escape(first))
        return self._path(_RECORDS, f"{_escape(first)}:", _escape(rest))

    async def _ensure_directories(self, keys: Sequence[str]) -> None:
        wanted = {key.partition("/")[0] for key in keys if "/" in key} - self._directories
        client = await self._connected()
        for name in wanted:
            await self._answer(client.ensure_path_async(self._path(_RECORDS, f"{_escape(name)}:")))
            self._directories.add(name)

    async def _read(self, key: str, on_event: Callable[[WatchedEvent], None] | None = None) -> Rec | None:
        client = await self._connected()
        path = self._record_path(key)
        try:
            value, stat = await self._answer(client.get_async(path, watch=on_event))
        except NoNodeError:
            if on_event is not None and await self._answer(client.exists_async(path, watch=on_event)) is not None:
                return await self._read(key, on_event)
            return None
        return _rec(value, stat)

    async def _snapshot(self, prefix: str, on_event: Callable[[WatchedEvent], None] | None = None) -> Snapshot:
        """Everything under a prefix.

        It takes many reads. Where the ensemble wrote something between the first and the last, it is read again, so
        that a snapshot is of one time unless the ensemble is very busy; and a read is a hint anyway.
        """
        client = await self._connected()
        for _ in range(_ATTEMPTS_MAX):
            before = await self._last_zxid(client)
            is_one_key = bool(prefix) and not prefix.endswith("/")
            keys = [prefix] if is_one_key else await self._keys(client, prefix, on_event)
            reads = await asyncio.gather(*(self._read(key, on_event) for key in keys))
            if await self._last_zxid(client) == before:
                break
        return Snapshot(before, {key: rec for key, rec in zip(keys, reads, strict=True) if rec is not None})

    async def _last_zxid(self, client: KazooClient) -> int:
        """The last change that the server of this connection knows of."""
        await self._answer(client.exists_async(self._path(_REVISION)))
        return int(client.last_zxid)

    async def _keys(
        self, client: KazooClient, prefix: str, on_event: Callable[[WatchedEvent], None] | None
    ) -> Sequence[str]:
        """The keys under a prefix, sorted."""
        if prefix:
            first = prefix.partition("/")[0]
            return sorted(key for key in await self._keys_in(client, first, on_event) if key.startswith(prefix))
        keys: MutableSequence[str] = []
        for name in await self._answer(client.get_children_async(self._path(_RECORDS), watch=on_event)):
            if name.endswith(":"):
                keys.extend(await self._keys_in(client, unquote(name[:-1]), on_event))
            else:
                keys.append(unquote(name))
        return sorted(keys)

    async def _keys_in(
        self, client: KazooClient, first: str, on_event: Callable[[WatchedEvent], None] | None
    ) -> Sequence[str]:
        path = self._path(_RECORDS, f"{_escape(first)}:")
        try:
            names = await self._answer(client.get_children_async(path, watch=on_event))
        except NoNodeError:
            if on_event is None:
                return []
            # A watch for its first key needs the level to exist.
            await self._ensure_directories([f"{first}/"])
            return await self._keys_in(client, first, on_event)
        return [f"{first}/{unquote(name)}" for name in names]

    # Transactions

    async def _plan(self, client: KazooClient, checks: Sequence[Check], ops: Sequence[Op]) -> _Multi | Conflict:
        """The `multi` of a transaction. Keys that are written without being compared are looked up first."""
        tokens = dict(checks)
        await self._ensure_directories([key for key, token in checks if token is ABSENT])
        await self._ensure_directories([op.key for op in ops if isinstance(op, Put)])
        multi = _Multi(client.transaction())
        for op in ops:
            owner = op.owner if isinstance(op, Put) else None
            expected = tokens.pop(op.key, None)
            is_compared = expected is not None
            if expected is None or (owner is not None and expected is not ABSENT):
                rec = await self._read(op.key)
                if owner is not None and rec is not None and rec.owner != owner:
                    return Conflict(op.key)
                if expected is None:
                    expected = ABSENT if rec is None else rec.token
            path = self._record_path(op.key)
            if isinstance(op, Put):
                multi.put(op, path, expected, is_compared)
            elif expected is not ABSENT:
                multi.delete(op.key, path, expected, is_compared)
            elif is_compared:
                multi.check_absent(op.key, path)
        for key, token in tokens.items():
            if token is ABSENT:
                multi.check_absent(key, self._record_path(key))
            else:
                multi.check(key, self._record_path(key), token)
        multi.write_revision(self._path(_REVISION))
        return multi

    async def _commit(self, multi: _Multi) -> TxnResult | _Moved:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                results = await _result(multi.request.commit_async())
        except _NO_ANSWER as error:
            return Unknown(_reason(error))
        for result, (key, is_compared) in zip(results, multi.keys, strict=True):
            if isinstance(result, (RolledBackError, RuntimeInconsistency)) or not isinstance(result, Exception):
                continue
            if isinstance(result, (NodeExistsError, NoNodeError, BadVersionError)):
                return Conflict(key) if is_compared else _Moved()
            if isinstance(result, _NO_ANSWER):
                return Unknown(_reason(result))
            raise MetadataStoreError(f"ZooKeeper refused a write of {key!r}: {_reason(result)}") from result
        zxid = int(results[-1].mzxid)
        tokens = {}
        for key, index in multi.puts.items():
            stat = results[index]
            # What was created now has no stat here, only its path; its first version is 0.
            tokens[key] = _token(stat.czxid, stat.version) if isinstance(stat, ZnodeStat) else _token(zxid, 0)
        return Ok(zxid, tokens)

    async def _look_again(self) -> None:
        self._changes.announce(None)


class _ImpatientHandler(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no types
    """Gives up on a server that takes no connection in time, for the sake of the others.

    kazoo gives each server the whole time of the session, so one whose machine is gone without a word could cost it.
    """

    def __init__(self, connect_timeout_s: float) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s

    def create_connection(self, *args: Any, **options: Any) -> Any:
        return super().create_connection(*args, **{**options, "timeout": self._connect_timeout_s})


class _Moved:
    """A key that is not compared came or went between the look and the write; nothing was written."""


class _Multi:
    """The operations of one transaction, each with its key and whether the caller compares that key."""

    def __init__(self, request: TransactionRequest) -> None:
        self.request = request
        self.keys: list[tuple[str, bool]] = []
        self.puts: dict[str, int] = {}  # the operation of each key that is put

    def put(self, op: Put, path: str, expected: Token | Literal[Absent.ABSENT], is_compared: bool) -> None:
        self.puts[op.key] = len(self.keys)
        self.keys.append((op.key, is_compared))
        if expected is ABSENT:
            self.request.create(path, bytes(op.value), ephemeral=op.owner is not None)
        else:
            self.request.set_data(path, bytes(op.value), _version(expected) if is_compared else _ANY_VERSION)

    def delete(self, key: str, path: str, expected: Token, is_compared: bool) -> None:
        self.keys.append((key, is_compared))
        self.request.delete(path, _version(expected) if is_compared else _ANY_VERSION)

    def check(self, key: str, path: str, expected: Token) -> None:
        self.keys.append((key, True))
        self.request.check(path, _version(expected))

    def check_absent(self, key: str, path: str) -> None:
        """ZooKeeper has no check for absence, but what can be created is not there."""
        self.keys += [(key, True), (key, True)]
        self.request.create(path, b"")
        self.request.delete(path)

    def write_revision(self, path: str) -> None:
        self.keys.append(("", True))
        self.request.set_data(path, b"")


@dataclass(frozen=True, slots=True)
class _ZooKeeperSession:
    client: KazooClient
    lease: Lease
    path: str
    heartbeat_timeout_s: float


def _escape(part: str) -> str:
    """A name that ZooKeeper takes: no slash, and not one or two dots."""
    escaped = quote(part, safe="")
    return escaped.replace(".", "%2E") if part in (".", "..") else escaped


def _token(created_zxid: int, version: int) -> Token:
    return (created_zxid << _VERSION_BITS) | version


def _version(token: Token) -> int:
    return token & ((1 << (_VERSION_BITS - 1)) - 1)


def _session_id(zookeeper_id: int) -> str:
    """As in a node's owner; kazoo has it as a signed number in one place and unsigned in another."""
    return f"{zookeeper_id & 0xFFFF_FFFF_FFFF_FFFF:x}"


def _rec(value: bytes, stat: ZnodeStat) -> Rec:
    owner = _session_id(stat.ephemeralOwner) if stat.ephemeralOwner else None
    return Rec(value, _token(stat.czxid, stat.version), stat.mzxid, stat.czxid, owner)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _stop(*clients: KazooClient) -> None:
    """End connections and their sessions. Blocks."""
    for client in clients:
        client.stop()
        client.close()


async def _in_thread(call: Callable[[], _T]) -> _T:
    """kazoo's calls that start and stop connections block."""
    return await asyncio.to_thread(call)


async def _result(result: IAsyncResult) -> Any:
    """What kazoo's threads will put into this result, or the error that they raise."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def take() -> None:
        if future.done():
            return
        if result.exception is not None:
            future.set_exception(result.exception)
        else:
            future.set_result(result.value)

    def on_ready(_: IAsyncResult) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits any more
            loop.call_soon_threadsafe(take)

    result.rawlink(on_ready)
    return await future
