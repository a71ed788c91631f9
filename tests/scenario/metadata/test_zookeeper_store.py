"""What only the store in ZooKeeper must do: outlive its servers, end the sessions of the dead, say what is wrong."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest
from kazoo.client import KazooState

from tcp_proxy import TcpProxy
from tidelog.bench.brokers import free_port
from tidelog.metadata import zookeeper
from tidelog.metadata.liveness import boot_time_ms
from tidelog.metadata.store import ABSENT, Conflict, MetadataStoreError, Ok, Put, SessionLost, Store, TxnResult
from tidelog.metadata.zookeeper import ZooKeeperAddress, ZooKeeperStore, parse_address
from tidelog.torture.zookeeper_ensemble import Ensemble

pytestmark = pytest.mark.xdist_group("zookeeper")

OpenStore = Callable[..., ZooKeeperStore]

HOLD_A_KEY = """
import asyncio, sys
from tidelog.metadata import Put, ABSENT
from tidelog.metadata.zookeeper import ZooKeeperStore, parse_address
async def main():
    store = ZooKeeperStore(parse_address(sys.argv[1]))
    session = await store.session(2_000)
    print(await store.txn([("live/7", ABSENT)], [Put("live/7", b"child", owner=session.id)]), flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


async def write_until_ok(store: Store, key: str, value: bytes) -> Ok:
    """Repeat a write whose outcome is unknown, as the controller does, until it is certain."""
    while True:
        result: TxnResult = await store.txn([], [Put(key, value)])
        if isinstance(result, Ok):
            return result


async def test_two_stores_see_each_others_writes(open_zookeeper: OpenStore) -> None:
    first, second = open_zookeeper(), open_zookeeper()
    async with aclosing(second.watch("topics/")) as snapshots:
        assert (await anext(snapshots)).records == {}
        written = await first.txn([("topics/a", ABSENT)], [Put("topics/a", b"1")])
        assert isinstance(written, Ok)
        snapshot = await anext(snapshots)
    assert snapshot.records["topics/a"].token == written.tokens["topics/a"]
    assert snapshot.rev >= written.rev
    assert await second.txn([("topics/a", ABSENT)], [Put("topics/a", b"2")]) == Conflict("topics/a")


async def test_reads_know_of_what_was_written_for_a_session(open_zookeeper: OpenStore) -> None:
    """A session has a connection of its own, as a rule to another server than the one that answers reads."""
    for _ in range(6):
        store = open_zookeeper()
        session = await store.session(8_000)
        for number in range(20):
            value = b"%d" % number
            written = await store.txn([], [Put("live/1", value, owner=session.id)])
            assert isinstance(written, Ok), written
            read = await store.get("live/1")
            assert read is not None
            assert (read.value, read.token) == (value, written.tokens["live/1"])
        await session.close()


async def test_keys_may_look_like_anything(open_zookeeper: OpenStore) -> None:
    store = open_zookeeper()
    keys = ["a", "a/b", "a/b/c", "a%2Fb", "a:", "a:/b", "t/.", "t/..", "t/ü ß", "t/100%"]
    result = await store.txn([], [Put(key, key.encode()) for key in keys])
    assert isinstance(result, Ok), result
    assert {key: rec.value for key, rec in (await store.list("")).items()} == {key: key.encode() for key in keys}
    assert list(await store.list("a/b/")) == ["a/b/c"]


async def test_a_killed_owner_is_noticed_after_its_time(open_zookeeper: OpenStore) -> None:
    store = open_zookeeper()
    await store.open()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_A_KEY, str(store._address), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert (await child.stdout.readline()).startswith(b"Ok")
    async with aclosing(store.watch("live/")) as snapshots:
        assert list((await anext(snapshots)).records) == ["live/7"]
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        assert (await anext(snapshots)).records == {}


async def test_a_stopped_process_finds_its_session_lost(open_zookeeper: OpenStore) -> None:
    store = open_zookeeper(boot_time_ms)
    session = await store.session(1_500)
    assert isinstance(await store.txn([("live/1", ABSENT)], [Put("live/1", b"", owner=session.id)]), Ok)
    held = store._sessions[session.id]
    held.client.stop()  # as if it were silent: no ping and no heartbeat arrives
    async with asyncio.timeout(30):
        await session.lost.wait()
    assert await store.txn([], [Put("live/1", b"", owner=session.id)]) == SessionLost(session.id)


async def test_a_session_outlives_the_server_it_is_connected_to(
    tmp_path: Path, open_zookeeper: OpenStore, ensemble: Ensemble
) -> None:
    store = open_zookeeper(boot_time_ms)
    session = await store.session(8_000)
    await write_until_ok(store, "before", b"1")
    assert isinstance(await store.txn([("live/1", ABSENT)], [Put("live/1", b"", owner=session.id)]), Ok)
    leader = await asyncio.to_thread(ensemble.leader)
    assert leader is not None
    await asyncio.to_thread(ensemble.kill, leader)
    try:
        await write_until_ok(store, "after", b"2")
        assert not session.lost.is_set()
        assert {key: rec.value for key, rec in (await store.list("")).items()} == {
            "after": b"2",
            "before": b"1",
            "live/1": b"",
        }
    finally:
        await asyncio.to_thread(ensemble.start, leader)
        await asyncio.to_thread(ensemble.wait_until_serving)
        await session.close()
    assert await store.list("live/") == {}


async def test_a_write_without_an_answer_is_unknown(
    open_zookeeper: OpenStore, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_zookeeper()
    await write_until_ok(store, "a", b"1")
    monkeypatch.setattr(zookeeper, "CALL_TIMEOUT_S", 0.5)
    pids = await asyncio.to_thread(ensemble.pause)
    try:
        result = await store.txn([], [Put("a", b"2")])
        assert not isinstance(result, (Ok, Conflict, SessionLost)), result
        with pytest.raises(MetadataStoreError, match="does not answer"):
            await store.get("a")
    finally:
        await asyncio.to_thread(ensemble.resume, pids)
    monkeypatch.setattr(zookeeper, "CALL_TIMEOUT_S", 10.0)
    await write_until_ok(store, "a", b"3")
    rec = await store.get("a")
    assert rec is not None
    assert rec.value == b"3"


async def test_an_ensemble_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zookeeper, "CONNECT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(zookeeper, "_SILENT_S", 0.1)
    caplog.set_level(logging.INFO)
    port = free_port()
    store = ZooKeeperStore(parse_address(f"zookeeper://127.0.0.1:{port}"))
    with pytest.raises(MetadataStoreError, match=rf"can't reach ZooKeeper at 127\.0\.0\.1:{port}.*--metadata"):
        await store.open()
    await store.close()
    # One line, and nothing about each attempt.
    lines = [record.getMessage() for record in caplog.records if record.name != "asyncio"]
    assert lines == [f"waiting for ZooKeeper at 127.0.0.1:{port}, for up to 0.3 s"]


@pytest.fixture
def dark_address() -> Iterator[str]:
    """Where nobody answers, not even that nobody listens: the queue of connections to accept is full."""
    waiting: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        try:
            for _ in range(10):
                waiting.append(socket.socket())
                waiting[-1].settimeout(0.2)
                waiting[-1].connect(listener.getsockname())
            pytest.fail("this system accepts more connections than were asked for")
        except TimeoutError:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for each in waiting:
                each.close()


async def test_a_server_that_is_dark_costs_neither_the_start_nor_a_session(
    dark_address: str, ensemble: Ensemble, closing: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Servers are tried in a random order. Here the dark one comes first, each time.
    monkeypatch.setattr(random, "shuffle", lambda _: None)
    lit = parse_address(ensemble.address).hosts.partition(",")[0]
    store = ZooKeeperStore(parse_address(f"zookeeper://{dark_address},{lit}/dark"))
    closing.push_async_callback(store.close)
    await store.open()
    session = await store.session(6_000)
    connected = store._sessions[session.id].client
    while not isinstance(await store.txn([], [Put("live/1", b"", owner=session.id)]), Ok):
        assert not session.lost.is_set()
    # Its connection breaks, and the dark server is tried before the other one.
    is_back = threading.Event()
    connected.add_listener(lambda state: is_back.set() if state == KazooState.CONNECTED else None)
    connected._connection._socket.shutdown(socket.SHUT_RDWR)
    assert await asyncio.to_thread(is_back.wait, 30)
    assert not session.lost.is_set()
    assert list(await store.list("live/")) == ["live/1"]


async def test_a_session_that_ends_while_the_ensemble_is_away_blocks_nobody_after(
    ensemble: Ensemble, closing: AsyncExitStack
) -> None:
    address = parse_address(ensemble.address)
    port = int(address.hosts.partition(",")[0].rpartition(":")[2])
    near = ZooKeeperStore(address._replace(chroot="/farewell"))
    closing.push_async_callback(near.close)
    with TcpProxy(port) as proxy:
        store = ZooKeeperStore(parse_address(f"zookeeper://{proxy.address}/farewell"))
        closing.push_async_callback(store.close)
        session = await store.session(10_000)
        assert isinstance(await store.txn([("live/1", ABSENT)], [Put("live/1", b"", owner=session.id)]), Ok)
        assert await near.barrier()
        assert list(await near.list("live/")) == ["live/1"]
        proxy.refusing = True
        proxy.cut_all()
        await asyncio.to_thread(proxy.wait_for, lambda: proxy.connections_refused >= 2)
        await session.close()
        assert list(await near.list("live/")) == ["live/1"]
        proxy.refusing = False
        # By itself, it would last for 10 s from when it last was heard of.
        async with asyncio.timeout(6), aclosing(near.watch("live/")) as snapshots:
            async for snapshot in snapshots:
                if not snapshot.records:
                    break
        assert await store.session(10_000)


async def test_a_store_closes_while_the_ensemble_has_not_heard_of_the_end_of_a_session(ensemble: Ensemble) -> None:
    port = int(parse_address(ensemble.address).hosts.partition(",")[0].rpartition(":")[2])
    with TcpProxy(port) as proxy:
        store = ZooKeeperStore(parse_address(f"zookeeper://{proxy.address}/farewell"))
        session = await store.session(10_000)
        proxy.refusing = True
        proxy.cut_all()
        await asyncio.to_thread(proxy.wait_for, lambda: proxy.connections_refused >= 2)
        await session.close()
        assert store._farewells
        await store.close()
        assert not store._farewells


async def test_a_lost_connection_is_logged_once(ensemble: Ensemble, caplog: pytest.LogCaptureFixture) -> None:
    port = int(ensemble.address.partition(",")[0].rpartition(":")[2])
    with TcpProxy(port) as proxy:
        store = ZooKeeperStore(parse_address(f"zookeeper://{proxy.address}/connection"))
        await write_until_ok(store, "before", b"1")
        caplog.set_level(logging.INFO)
        proxy.refusing = True
        proxy.cut_all()
        await asyncio.to_thread(proxy.wait_for, lambda: proxy.connections_refused >= 3)
        proxy.refusing = False
        await write_until_ok(store, "after", b"2")
        await store.close()
    lines = [record.getMessage() for record in caplog.records if record.name != "asyncio"]
    assert lines == [
        f"lost the connection to ZooKeeper at {proxy.address}; reconnecting",
        f"connected to ZooKeeper at {proxy.address} again",
    ]


def test_addresses() -> None:
    assert parse_address("zookeeper://a:1,b:2/x/y") == ZooKeeperAddress("a:1,b:2", "/x/y")
    assert parse_address("zookeeper://a:1") == parse_address("zookeeper://a:1/")
    for text in (
        "a:1",
        "zookeeper://",
        "zookeeper://a",
        "zookeeper://a:b",
        "zookeeper://a:1,/x",
        "zookeeper://a:1/x//y",
    ):
        with pytest.raises(ValueError, match=r"zookeeper://host1:2181"):
            parse_address(text)
