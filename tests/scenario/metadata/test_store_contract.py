"""What every metadata store must do, run over each of them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.metadata.store import (
    ABSENT,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Conflict,
    Del,
    Ok,
    Put,
    SessionLost,
    Snapshot,
    Store,
    TxnResult,
)

TTL_MS = 60_000


def ok(result: TxnResult) -> Ok:
    assert isinstance(result, Ok), result
    return result


async def test_an_unknown_key_has_no_record(store: Store) -> None:
    assert await store.get("nothing/here") is None
    assert await store.list("nothing/") == {}


async def test_a_value_is_read_back_with_its_token(store: Store) -> None:
    result = ok(await store.txn([("a", ABSENT)], [Put("a", b"one")]))
    rec = await store.get("a")
    assert rec is not None
    assert (rec.value, rec.token, rec.rev, rec.owner) == (b"one", result.tokens["a"], result.rev, None)


async def test_every_write_changes_the_token_and_only_the_first_the_creation(store: Store) -> None:
    first = ok(await store.txn([("a", ABSENT)], [Put("a", b"one")]))
    created = (await store.list("a"))["a"].created
    second = ok(await store.txn([("a", first.tokens["a"])], [Put("a", b"one")]))
    assert second.tokens["a"] != first.tokens["a"]
    assert second.rev > first.rev
    assert (await store.list("a"))["a"].created == created


async def test_a_stale_token_is_refused_and_named(store: Store) -> None:
    first = ok(await store.txn([], [Put("a", b"one")]))
    ok(await store.txn([], [Put("a", b"two")]))
    assert await store.txn([("a", first.tokens["a"])], [Put("a", b"three")]) == Conflict("a")
    assert await store.txn([("a", ABSENT)], [Put("a", b"three")]) == Conflict("a")
    assert await store.txn([("b", first.tokens["a"])], [Put("b", b"three")]) == Conflict("b")


async def test_a_refused_transaction_changes_nothing(store: Store) -> None:
    ok(await store.txn([], [Put("a", b"one"), Put("b", b"one")]))
    before = await store.list("")
    result = await store.txn([("b", ABSENT)], [Put("a", b"two"), Del("b"), Put("c", b"two")])
    assert result == Conflict("b")
    assert await store.list("") == before


async def test_a_check_may_be_about_a_key_that_is_not_written(store: Store) -> None:
    epoch = ok(await store.txn([], [Put("epoch", b"1")]))
    ok(await store.txn([("epoch", epoch.tokens["epoch"])], [Put("a", b"by 1")]))
    ok(await store.txn([], [Put("epoch", b"2")]))
    assert await store.txn([("epoch", epoch.tokens["epoch"])], [Put("a", b"by 1")]) == Conflict("epoch")


async def test_a_key_made_anew_has_a_token_of_its_own(store: Store) -> None:
    first = ok(await store.txn([], [Put("a", b"one")]))
    ok(await store.txn([("a", first.tokens["a"])], [Del("a")]))
    assert await store.get("a") is None
    again = ok(await store.txn([("a", ABSENT)], [Put("a", b"one")]))
    assert again.tokens["a"] != first.tokens["a"]


async def test_removing_what_is_not_there_is_no_error(store: Store) -> None:
    ok(await store.txn([], [Del("a")]))


async def test_checks_alone_make_a_transaction(store: Store) -> None:
    token = ok(await store.txn([], [Put("a", b"")])).tokens["a"]
    ok(await store.txn([("a", token), ("b", ABSENT)], []))
    assert await store.txn([("a", ABSENT)], []) == Conflict("a")


async def test_prefixes_are_whole_parts_of_keys(store: Store) -> None:
    names = ["controller", "controller-epoch", "topics/a", "topics/a/b", "topics2/c", "topics0"]
    ok(await store.txn([], [Put(name, name.encode()) for name in names]))
    assert list(await store.list("topics/")) == ["topics/a", "topics/a/b"]
    assert list(await store.list("controller")) == ["controller"]
    assert list(await store.list("")) == sorted(names)


async def test_the_largest_value_is_taken_and_one_byte_more_refused(store: Store) -> None:
    ok(await store.txn([], [Put("a", bytes(VALUE_BYTES_MAX))]))
    with pytest.raises(ValueError, match="524289 bytes; at most 524288"):
        await store.txn([], [Put("a", bytes(VALUE_BYTES_MAX + 1))])


async def test_a_hundred_operations_are_taken_and_one_more_refused(store: Store) -> None:
    token = ok(await store.txn([], [Put("epoch", b"")])).tokens["epoch"]
    puts = [Put(f"k/{n}", b"") for n in range(OPERATIONS_MAX)]
    checked = [(put.key, ABSENT) for put in puts[1:]]
    ok(await store.txn([("epoch", token), *checked], puts[1:]))
    with pytest.raises(ValueError, match="101 operations"):
        await store.txn([("epoch", token)], puts)


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a\nb", "x" * 513])
async def test_what_cannot_be_a_key_everywhere_is_refused(store: Store, key: str) -> None:
    with pytest.raises(ValueError, match="can't be a key"):
        await store.txn([], [Put(key, b"")])


async def test_a_key_stands_once_in_a_transaction(store: Store) -> None:
    with pytest.raises(ValueError, match="written twice"):
        await store.txn([], [Put("a", b""), Del("a")])
    with pytest.raises(ValueError, match="checked twice"):
        await store.txn([("a", ABSENT), ("a", ABSENT)], [])


async def test_a_barrier_moves_the_revision(store: Store) -> None:
    before = ok(await store.txn([], [Put("a", b"")])).rev
    assert before < await store.barrier() < await store.barrier()


async def test_one_of_many_wins_an_election(store: Store) -> None:
    results = await asyncio.gather(*(store.txn([("leader", ABSENT)], [Put("leader", b"%d" % n)]) for n in range(20)))
    assert sum(isinstance(result, Ok) for result in results) == 1


async def test_a_watch_begins_with_what_is_there(store: Store) -> None:
    ok(await store.txn([], [Put("topics/a", b"1"), Put("other", b"")]))
    async with aclosing(store.watch("topics/")) as snapshots:
        snapshot = await anext(snapshots)
    assert {key: rec.value for key, rec in snapshot.records.items()} == {"topics/a": b"1"}


async def test_a_watch_shows_the_last_state_and_never_goes_back(store: Store) -> None:
    seen: list[Snapshot] = []

    async def watch() -> None:
        async with aclosing(store.watch("n")) as snapshots:
            async for snapshot in snapshots:
                seen.append(snapshot)
                if "n" in snapshot.records and snapshot.records["n"].value == b"99":
                    return

    watching = asyncio.create_task(watch())
    for n in range(100):
        ok(await store.txn([], [Put("n", b"%d" % n)]))
    await watching
    revisions = [snapshot.rev for snapshot in seen]
    values = [int(snapshot.records["n"].value) for snapshot in seen if "n" in snapshot.records]
    assert revisions == sorted(revisions)
    assert values == sorted(values)
    assert len(seen) <= 101


async def test_a_watch_is_not_woken_by_other_keys(store: Store) -> None:
    async with aclosing(store.watch("topics/")) as snapshots:
        await anext(snapshots)
        following = asyncio.ensure_future(anext(snapshots))
        for n in range(20):
            ok(await store.txn([], [Put(f"other/{n}", b"")]))
        assert not following.done()
        ok(await store.txn([], [Put("topics/a", b"")]))
        assert list((await following).records) == ["topics/a"]


async def test_owned_keys_go_when_their_session_is_closed(store: Store) -> None:
    session = await store.session(TTL_MS)
    ok(await store.txn([("a", ABSENT)], [Put("a", b"", owner=session.id), Put("b", b"")]))
    rec = await store.get("a")
    assert rec is not None
    assert rec.owner == session.id
    await session.close()
    assert session.lost.is_set()
    assert list(await store.list("")) == ["b"]


async def test_nothing_can_be_owned_by_a_session_that_is_gone(store: Store) -> None:
    session = await store.session(TTL_MS)
    await session.close()
    assert await store.txn([], [Put("a", b"", owner=session.id)]) == SessionLost(session.id)
    assert await store.get("a") is None


async def test_an_owned_key_keeps_its_owner(store: Store) -> None:
    mine, other = await store.session(TTL_MS), await store.session(TTL_MS)
    ok(await store.txn([], [Put("a", b"1", owner=mine.id), Put("b", b"1")]))
    assert await store.txn([], [Put("a", b"2", owner=other.id)]) == Conflict("a")
    assert await store.txn([], [Put("b", b"2", owner=mine.id)]) == Conflict("b")
    ok(await store.txn([], [Put("a", b"2")]))
    ok(await store.txn([], [Put("a", b"3", owner=mine.id)]))
    rec = await store.get("a")
    assert rec is not None
    assert (rec.owner, rec.value) == (mine.id, b"3")
    await mine.close()
    await other.close()
    assert await store.get("a") is None


async def test_a_silent_session_ends_and_a_watch_tells(timed_store: Store, clock: VirtualClock) -> None:
    session = await timed_store.session(TTL_MS)
    ok(await timed_store.txn([], [Put("controller", b"", owner=session.id)]))
    async with aclosing(timed_store.watch("controller")) as snapshots:
        assert "controller" in (await anext(snapshots)).records
        clock.advance(ms=TTL_MS - 1)
        following = asyncio.ensure_future(anext(snapshots))
        await timed_store.barrier()
        assert not following.done()
        clock.advance(ms=1)
        assert "controller" not in (await following).records
    assert await timed_store.txn([], [Put("b", b"", owner=session.id)]) == SessionLost(session.id)
    await session.close()


async def test_the_place_of_a_dead_session_can_be_taken_at_once(timed_store: Store, clock: VirtualClock) -> None:
    old = await timed_store.session(TTL_MS)
    ok(await timed_store.txn([("controller", ABSENT)], [Put("controller", b"old", owner=old.id)]))
    clock.advance(ms=TTL_MS)
    new = await timed_store.session(TTL_MS)
    ok(await timed_store.txn([("controller", ABSENT)], [Put("controller", b"new", owner=new.id)]))
    await old.close()
    rec = await timed_store.get("controller")
    assert rec is not None
    assert rec.value == b"new"
    await new.close()


async def test_a_sessions_own_deadline_counts_from_before_it_was_asked_for(store: Store, clock: VirtualClock) -> None:
    asked_ms = clock.monotonic_ms()
    session = await store.session(TTL_MS)
    assert session.deadline_ms == asked_ms + TTL_MS
    await session.close()
