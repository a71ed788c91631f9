"""What only the store in a file must do: last, serve several processes, and say clearly what is wrong with the file."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import apsw
import pytest

from tidelog.metadata import database
from tidelog.metadata.liveness import boot_time_ms
from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import ABSENT, Conflict, MetadataStoreError, Ok, Put

OpenStore = Callable[..., SqliteStore]
TTL_MS = 60_000

WRITE_FOREVER = """
import asyncio, sys
from tidelog.metadata import SqliteStore, Put, ABSENT
async def main():
    store = SqliteStore(sys.argv[1])
    session = await store.session(60_000)
    await store.txn([("controller", ABSENT)], [Put("controller", b"child", owner=session.id)])
    for n in range(1_000_000):
        await store.txn([], [Put("a/%d" % (n % 50), b"%d" % n), Put("b/%d" % (n % 50), b"%d" % n)])
        print(n, flush=True)
asyncio.run(main())
"""


async def test_what_was_written_is_there_after_a_restart(open_sqlite: OpenStore) -> None:
    first = open_sqlite()
    written = await first.txn([], [Put("a", b"one"), Put("b", b"two")])
    before = await first.list("")
    await first.close()
    second = open_sqlite()
    assert await second.list("") == before
    assert isinstance(written, Ok)
    assert isinstance(await second.txn([("a", written.tokens["a"])], [Put("a", b"three")]), Ok)


async def test_a_commit_is_synced_to_the_disk(open_sqlite: OpenStore) -> None:
    store = open_sqlite()
    await store.open()
    assert store._database is not None
    connection = store._database._connection

    def modes() -> tuple[object, object]:
        return connection.pragma("journal_mode"), connection.pragma("synchronous")

    session = await store.session(TTL_MS)
    assert await session.heartbeat()
    full = 2
    assert await store.run(modes) == ("wal", full)
    await session.close()


async def test_a_busy_event_loop_does_not_lose_a_session(open_sqlite: OpenStore) -> None:
    mine, theirs = open_sqlite(boot_time_ms), open_sqlite(boot_time_ms)
    session = await mine.session(1_000)
    assert isinstance(await mine.txn([("controller", ABSENT)], [Put("controller", b"mine", owner=session.id)]), Ok)
    deadline_ms = session.deadline_ms
    busy_until_ms = boot_time_ms() + 2_500
    while boot_time_ms() < busy_until_ms:
        pass
    assert session.deadline_ms >= deadline_ms + 1_000
    assert await theirs.txn([("controller", ABSENT)], [Put("controller", b"theirs")]) == Conflict("controller")
    await asyncio.sleep(0)
    assert not session.lost.is_set()
    await session.close()


async def test_a_hanging_disk_ends_a_session_at_its_deadline(open_sqlite: OpenStore) -> None:
    store = open_sqlite(boot_time_ms)
    session = await store.session(300)
    released = threading.Event()
    hanging = asyncio.ensure_future(store.run(released.wait))
    async with asyncio.timeout(30):
        await session.lost.wait()
    assert boot_time_ms() >= session.deadline_ms
    assert not hanging.done()
    released.set()
    await hanging
    assert not await session.heartbeat()
    await session.close()


async def test_a_watch_sees_what_another_process_writes(open_sqlite: OpenStore) -> None:
    mine, theirs = open_sqlite(), open_sqlite()
    async with aclosing(mine.watch("a")) as snapshots:
        assert (await anext(snapshots)).records == {}
        await theirs.txn([], [Put("a", b"one")])
        assert (await anext(snapshots)).records["a"].value == b"one"


async def test_nothing_is_polled_while_nobody_watches(open_sqlite: OpenStore) -> None:
    store = open_sqlite()
    await store.txn([], [Put("a", b"")])
    assert store._changes._poller is None
    async with aclosing(store.watch("a")) as snapshots:
        await anext(snapshots)
        assert store._changes._poller is not None
    assert store._changes._poller is None


async def test_two_processes_compare_and_set_the_same_key(open_sqlite: OpenStore) -> None:
    stores = [open_sqlite(), open_sqlite()]

    async def count(store: SqliteStore) -> None:
        done = 0
        while done < 50:
            rec = await store.get("n")
            value = b"1" if rec is None else b"%d" % (int(rec.value) + 1)
            result = await store.txn([("n", ABSENT if rec is None else rec.token)], [Put("n", value)])
            done += isinstance(result, Ok)

    await asyncio.gather(*(count(store) for store in stores))
    rec = await stores[0].get("n")
    assert rec is not None
    assert rec.value == b"100"


async def test_a_session_of_a_process_that_died_ends_at_once(open_sqlite: OpenStore) -> None:
    dead, alive = open_sqlite(), open_sqlite()
    session = await dead.session(TTL_MS)
    await dead.txn([("controller", ABSENT)], [Put("controller", b"dead", owner=session.id)])
    assert await alive.txn([("controller", ABSENT)], [Put("controller", b"alive")]) == Conflict("controller")
    await dead.close()  # leaves the session as it is, as a killed process would
    assert isinstance(await alive.txn([("controller", ABSENT)], [Put("controller", b"alive")]), Ok)


async def test_a_killed_process_leaves_its_place_and_all_it_was_told_is_written(
    open_sqlite: OpenStore, tmp_path: Path
) -> None:
    store = open_sqlite(boot_time_ms)
    await store.open()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITE_FOREVER, os.fspath(tmp_path / "metadata.db"), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    while int(await child.stdout.readline()) < 200:
        pass
    child.send_signal(signal.SIGKILL)
    rest = (await child.stdout.read()).splitlines(keepends=True)
    await child.wait()
    acknowledged = max([200, *(int(line) for line in rest if line.endswith(b"\n"))])
    rec = await store.get(f"a/{acknowledged % 50}")
    assert rec is not None
    assert int(rec.value) >= acknowledged
    firsts = [rec.value for rec in (await store.list("a/")).values()]
    seconds = [rec.value for rec in (await store.list("b/")).values()]
    assert firsts == seconds
    assert isinstance(await store.txn([("controller", ABSENT)], [Put("controller", b"parent")]), Ok)
    assert not list(tmp_path.glob("*-session-*"))


async def test_many_processes_may_create_the_file_together(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "metadata.db") for _ in range(8)]
    try:
        await asyncio.gather(*(store.txn([], [Put(f"s/{n}", b"")]) for n, store in enumerate(stores)))
        assert len(await stores[0].list("s/")) == 8
    finally:
        for store in stores:
            await store.close()


async def test_lock_files_of_the_dead_are_removed(open_sqlite: OpenStore, tmp_path: Path) -> None:
    stray = tmp_path / "metadata.db-session-0123"
    stray.touch()
    store = open_sqlite()
    session = await store.session(TTL_MS)
    assert [path.name for path in tmp_path.glob("*-session-*")] == [f"metadata.db-session-{session.id}"]
    await session.close()
    assert not list(tmp_path.glob("*-session-*"))


async def test_a_damaged_file_is_named_with_the_way_out(open_sqlite: OpenStore, tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"this is no database" * 1000)
    with pytest.raises(MetadataStoreError, match=r"metadata\.db is damaged .*restore the file from a backup"):
        await open_sqlite().open()


async def test_damage_inside_the_file_is_noticed_when_it_is_read(open_sqlite: OpenStore, tmp_path: Path) -> None:
    store = open_sqlite()
    for n in range(20):
        await store.txn([], [Put(f"a/{n}", bytes(3000))])
    await store.close()
    path = tmp_path / "metadata.db"
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(MetadataStoreError, match=r"metadata\.db"):
        await open_sqlite().list("")


async def test_the_database_of_another_program_is_left_alone(open_sqlite: OpenStore, tmp_path: Path) -> None:
    connection = apsw.Connection(os.fspath(tmp_path / "metadata.db"))
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(MetadataStoreError, match="another program"):
        await open_sqlite().open()


async def test_a_newer_schema_is_refused(open_sqlite: OpenStore, tmp_path: Path) -> None:
    store = open_sqlite()
    await store.open()
    await store.close()
    connection = apsw.Connection(os.fspath(tmp_path / "metadata.db"))
    connection.execute("UPDATE meta SET value = 99 WHERE name = 'schema_version'")
    connection.close()
    with pytest.raises(MetadataStoreError, match="schema version 99"):
        await open_sqlite().open()


async def test_a_network_filesystem_is_refused(open_sqlite: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "network_filesystem", lambda directory: "nfs4")
    with pytest.raises(MetadataStoreError, match="network filesystem \\(nfs4\\)"):
        await open_sqlite().open()


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetadataStoreError, match="nowhere"):
        await SqliteStore(tmp_path / "nowhere" / "metadata.db").open()


async def test_a_full_disk_is_an_error_and_changes_nothing(open_sqlite: OpenStore) -> None:
    store = open_sqlite()
    await store.txn([], [Put("a", b"one")])
    assert store._database is not None
    store._database._connection.pragma("max_page_count", 1)
    with pytest.raises(MetadataStoreError, match="disk is full"):
        await store.txn([], [Put("a", b"two"), Put("b", bytes(500_000))])
    store._database._connection.pragma("max_page_count", 1_000_000)
    assert {key: rec.value for key, rec in (await store.list("")).items()} == {"a": b"one"}
    assert isinstance(await store.txn([], [Put("a", b"three")]), Ok)


async def test_a_closed_store_says_so(open_sqlite: OpenStore) -> None:
    store = open_sqlite()
    await store.open()
    await store.close()
    await store.close()
    with pytest.raises(MetadataStoreError, match="is closed"):
        await store.get("a")


async def test_a_watch_ends_when_the_store_is_closed(open_sqlite: OpenStore) -> None:
    store = open_sqlite()
    async with aclosing(store.watch("a")) as snapshots:
        await anext(snapshots)
        following = asyncio.ensure_future(anext(snapshots))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(MetadataStoreError, match="is closed"):
            await following
