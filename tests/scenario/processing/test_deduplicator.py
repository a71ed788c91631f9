"""What a deduplicator promises, the same over Redis, PostgreSQL and SQLite."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tidelog import Deduplicator
from tidelog.client.errors import ClosedError
from tidelog.client.processing.errors import ClaimBusyError, ClaimLostError
from tidelog.client.processing.record_keys import by_header, by_key

pytestmark = pytest.mark.xdist_group("processing")


@dataclass(frozen=True)
class Record:
    offset: int
    topic: str = "orders"
    partition: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@pytest.fixture
def deduplicator(database: Any) -> Iterator[Callable[..., Deduplicator]]:
    """Makes deduplicators over the database; each has connections of its own, as processes have."""
    made: list[Deduplicator] = []

    def make(**options: Any) -> Deduplicator:
        made.append(Deduplicator(database.url, **({"name": "billing"} | options)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_the_work_is_done_once(deduplicator: Callable[..., Deduplicator]) -> None:
    dedup, other = deduplicator(), deduplicator()
    with dedup.once(Record(7)) as first:
        assert first
    for each in (dedup, other):
        with each.once(Record(7)) as again:
            assert not again
            assert not again.is_busy
    with other.once("orders-0-7") as by_name:
        assert not by_name
    with dedup.once(Record(8)) as another:
        assert another


def test_each_name_works_once(deduplicator: Callable[..., Deduplicator]) -> None:
    for name in ("billing", "mail"):
        with deduplicator(name=name).once("k") as first:
            assert first


def test_work_that_raises_is_done_again(deduplicator: Callable[..., Deduplicator]) -> None:
    def fail() -> None:
        with deduplicator().once("k") as first:
            assert first
            raise RuntimeError("no ink")

    with pytest.raises(RuntimeError, match="no ink"):
        fail()
    with deduplicator(when_busy="raise").once("k") as first:
        assert first


def test_a_busy_key_is_told_as_asked(deduplicator: Callable[..., Deduplicator]) -> None:
    with deduplicator().once("k"):
        with deduplicator(when_busy="skip").once("k") as skipped:
            assert not skipped
            assert skipped.is_busy
        with pytest.raises(ClaimBusyError, match="k: another process"), deduplicator(when_busy="raise").once("k"):
            pytest.fail("the block must not run")
        with pytest.raises(ClaimBusyError), deduplicator(wait_s=0.05).once("k"):
            pytest.fail("the block must not run")
    with deduplicator(when_busy="skip").once("k") as after:
        assert not after
        assert not after.is_busy


def test_a_waiter_hears_how_it_ended(deduplicator: Callable[..., Deduplicator]) -> None:
    """One waits for work that succeeds and is told that it is done, one for work that fails and takes it over."""
    dedup = deduplicator()

    def told(key: str) -> bool:
        with deduplicator().once(key) as first:
            return bool(first)

    with ThreadPoolExecutor(2) as pool:
        with dedup.once("good"), suppress(RuntimeError), dedup.once("bad"):
            good, bad = pool.submit(told, "good"), pool.submit(told, "bad")
            raise RuntimeError
        assert not good.result(20)
        assert bad.result(20)


def test_of_many_at_once_one_works(deduplicator: Callable[..., Deduplicator]) -> None:
    dedups = [deduplicator() for _ in range(4)]
    begin = threading.Barrier(8)
    worked: list[str] = []

    def work(index: int) -> None:
        begin.wait(20)
        for key in map(str, range(25)):
            with dedups[index % 4].once(key) as first:
                if first:
                    worked.append(key)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, index) for index in range(8)]:
            future.result(60)
    assert sorted(worked, key=int) == list(map(str, range(25)))


def test_a_claim_whose_lease_ran_out_is_taken_over(deduplicator: Callable[..., Deduplicator], database: Any) -> None:
    """The one that was too slow is told so, and its fence is smaller than that of the one after it."""
    slow, quick = deduplicator(), deduplicator(when_busy="raise")

    def be_slow() -> None:
        with slow.once("k") as first:
            database.end_all_times()
            with quick.once("k") as second:
                assert second
                assert second.fence > first.fence

    with pytest.raises(ClaimLostError, match="lease_s"):
        be_slow()
    with quick.once("k") as third:
        assert not third


def test_a_late_mark_counts_when_nobody_took_over(deduplicator: Callable[..., Deduplicator], database: Any) -> None:
    dedup = deduplicator()
    with dedup.once("k"):
        database.end_all_times()
    with dedup.once("k") as again:
        assert not again


def test_a_lease_is_extended_and_a_lost_one_is_not(deduplicator: Callable[..., Deduplicator], database: Any) -> None:
    dedup = deduplicator(lease_s=0.5)
    with dedup.once("k") as first:
        first.extend(3600)
        with pytest.raises(ClaimBusyError, match=r"lease lasts 3[56]"), deduplicator(when_busy="raise").once("k"):
            pytest.fail("the block must not run")
        database.end_all_times()
        with pytest.raises(ClaimLostError):
            first.extend()


def test_a_short_lease_ends_by_the_databases_clock(deduplicator: Callable[..., Deduplicator]) -> None:
    dead = deduplicator(lease_s=0.05).once("k")
    dead.__enter__()  # its process dies here
    with deduplicator().once("k") as first:
        assert first


def test_marks_expire(deduplicator: Callable[..., Deduplicator], database: Any) -> None:
    dedup = deduplicator()
    with dedup.once("k"):
        pass
    database.end_all_times()
    with dedup.once("k") as again:
        assert again


def test_expired_marks_are_removed_while_new_ones_come(
    deduplicator: Callable[..., Deduplicator], database: Any
) -> None:
    dedup = deduplicator()
    with dedup.filter_new([Record(offset) for offset in range(130)]):
        pass
    database.end_all_times()
    for offset in range(130, 260):
        with dedup.once(Record(offset)):
            pass
    assert database.count() <= 130 + 64
    database.end_all_times()
    dedup.purge()
    assert database.count() == 0


def test_a_batch_gives_the_new_ones_in_order(deduplicator: Callable[..., Deduplicator]) -> None:
    dedup = deduplicator(key=by_key)
    with dedup.once("b"):
        pass
    records = [Record(offset, key=key) for offset, key in enumerate((b"c", b"b", b"a", b"c"))]
    with dedup.filter_new(records) as new:
        assert list(new) == [records[0], records[2]]
        assert new[0] is records[0]
        assert new.fence(records[0]) != new.fence(records[2])
    with dedup.filter_new(records) as new:
        assert len(new) == 0
    nothing: list[Record] = []
    with dedup.filter_new(nothing) as new:
        assert not list(new)


def test_a_batch_that_raises_keeps_what_was_noted(deduplicator: Callable[..., Deduplicator]) -> None:
    dedup = deduplicator()
    records = [Record(offset) for offset in range(4)]
    with suppress(RuntimeError), dedup.filter_new(records) as new:
        for record in new:
            if record.offset == 2:
                raise RuntimeError
            new.done(record)
    with deduplicator(when_busy="raise").filter_new(records) as new:
        assert list(new) == records[2:]


def test_batches_that_cross_never_hold_each_other_up(deduplicator: Callable[..., Deduplicator]) -> None:
    """A batch with a busy key claims none of its keys while it waits, or the two would wait for each other."""
    records = [Record(offset) for offset in range(20)]
    worked: list[int] = []

    def work(mine: list[Record]) -> None:
        dedup = deduplicator()
        for _ in range(5):
            with dedup.filter_new(mine) as new:
                worked.extend(record.offset for record in new)

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(work, mine) for mine in (records, records[::-1], records[5:] + records[:5])]:
            future.result(50)
    assert sorted(worked) == list(range(20))


def test_a_batch_may_skip_what_is_busy(deduplicator: Callable[..., Deduplicator]) -> None:
    records = [Record(offset) for offset in range(3)]
    with deduplicator().once(records[1]), deduplicator(when_busy="skip").filter_new(records) as new:
        assert list(new) == [records[0], records[2]]
        assert new.busy == [records[1]]


def test_keys_may_be_long_or_from_a_header(deduplicator: Callable[..., Deduplicator]) -> None:
    dedup = deduplicator(key=by_header("message-id"))
    long = Record(1, headers=(("other", b"x"), ("message-id", b"\xff\x00" * 5000)))
    for expected in (True, False):
        with dedup.once(long) as first:
            assert bool(first) is expected
    with pytest.raises(ValueError, match="orders-0-2 has no header 'message-id'"), dedup.once(Record(2)):
        pytest.fail("the block must not run")


def _claim_in_child(dedup: Deduplicator, answers: Any) -> None:
    with dedup.once("parent") as old, dedup.once("child") as new:
        answers.put((bool(old), bool(new)))


def test_it_works_in_a_forked_child(deduplicator: Callable[..., Deduplicator]) -> None:
    dedup = deduplicator()
    with dedup.once("parent"):
        pass
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_claim_in_child, args=(dedup, answers))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert answers.get() == (False, True)
    with dedup.once("child") as first:
        assert not first


def test_a_closed_one_is_refused(deduplicator: Callable[..., Deduplicator]) -> None:
    dedup = deduplicator()
    dedup.close()
    dedup.close()
    with pytest.raises(ClosedError), dedup.once("k"):
        pytest.fail("the block must not run")
