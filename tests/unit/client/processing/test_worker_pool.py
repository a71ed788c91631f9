"""A worker pool of threads over a consumer without a cluster."""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tidelog import KeyedWorkerPool
from tidelog.client.consumer.rebalance import RebalanceListener
from tidelog.client.errors import CommitFailedError, ConfigError, ConnectError, FatalError
from tidelog.client.processing.errors import ProcessingFailedError

KEYS = [f"key-{number}" for number in range(7)]
WAIT_S = 20


class Handler:
    """Notes what it handled; does with a record what the test wants."""

    def __init__(self, act: Callable[[Any], None] = lambda record: None) -> None:
        self._act = act
        self._lock = threading.Lock()
        self.running: set[Any] = set()
        self.handled: dict[Any, list[int]] = defaultdict(list)
        self.most_at_once = 0

    def __call__(self, record: Any) -> None:
        lane = (record.partition, record.key)
        with self._lock:
            assert lane not in self.running, "two records of a key run at once"
            self.running.add(lane)
            self.most_at_once = max(self.most_at_once, len(self.running))
        try:
            self._act(record)
            with self._lock:
                self.handled[lane].append(record.offset)
        finally:
            with self._lock:
                self.running.discard(lane)

    @property
    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.handled.values()))


def keyed(count: int, partitions: int = 2) -> list[list[str]]:
    return [[KEYS[offset % 7] for offset in range(count)] for _ in range(partitions)]


def test_everything_is_handled_in_order_and_committed(
    group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]
) -> None:
    group = group_of(keyed(300))
    handler = Handler()
    pool = KeyedWorkerPool(fake_consumer(group), handler, topics=["orders"], workers=4, poll_timeout_s=0.01)
    with pool:
        wait_until(lambda: handler.count == 600, "all are handled")
    assert group.committed == group.end()
    for offsets in handler.handled.values():
        assert offsets == sorted(set(offsets))
    metrics = pool.metrics()
    assert (metrics.done, metrics.in_flight, metrics.in_flight_bytes, metrics.running) == (600, 0, 0, 0)
    assert set(metrics.uncommitted.values()) == {0}


def test_keys_run_in_parallel(group_of: Any, fake_consumer: Any) -> None:
    """Four handlers meet, which they can only do at the same time."""
    meeting = threading.Barrier(4)
    group = group_of([["a", "b", "c", "d"]])
    with KeyedWorkerPool(
        fake_consumer(group), lambda record: meeting.wait(WAIT_S), topics=["orders"], workers=4
    ) as pool:
        while pool.metrics().done < 4:
            pool.wait(0.01)
    assert group.committed == group.end()


@pytest.mark.parametrize("router", ["partition", lambda record: "one"])
def test_order_by_partition_or_router(
    group_of: Any, fake_consumer: Any, wait_until: Callable[..., None], router: Any
) -> None:
    group = group_of(keyed(50, partitions=1))
    handled: list[int] = []
    with KeyedWorkerPool(
        fake_consumer(group), lambda record: handled.append(record.offset), topics=["orders"], order_by=router
    ):
        wait_until(lambda: len(handled) == 50, "all are handled")
    assert handled == list(range(50))


def test_failures_are_tried_again_in_order(group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]) -> None:
    attempts: dict[int, int] = defaultdict(int)

    def act(record: Any) -> None:
        attempts[record.offset] += 1
        if record.offset % 5 == 0 and attempts[record.offset] < 3:
            raise ValueError("not yet")

    group = group_of(keyed(40, partitions=1))
    handler = Handler(act)
    pool = KeyedWorkerPool(
        fake_consumer(group), handler, topics=["orders"], retry_backoff_s=0.001, attempts=3, poll_timeout_s=0.01
    )
    with pool:
        wait_until(lambda: handler.count == 40, "all are handled")
    for offsets in handler.handled.values():
        assert offsets == sorted(offsets)
    assert pool.metrics().retries == 16
    assert group.committed == group.end()


def test_a_record_that_can_not_be_handled_stops_the_pool(group_of: Any, fake_consumer: Any) -> None:
    """Nothing from it on is committed, no later record of its key is begun, and whoever waits is told."""

    def act(record: Any) -> None:
        if record.offset == 10:
            raise ValueError("no ink")

    group = group_of([["a"] * 30])
    handler = Handler(act)
    pool = KeyedWorkerPool(fake_consumer(group), handler, topics=["orders"], attempts=2, retry_backoff_s=0.001)
    with pytest.raises(
        ProcessingFailedError, match=r"orders-0-10 could not be processed \(2 attempts\).*no ink"
    ) as raised:
        pool.run()
    assert isinstance(raised.value.__cause__, ValueError)
    assert group.committed == {group.places[0]: 10}
    assert handler.handled == {(0, b"a"): list(range(10))}
    with pytest.raises(ProcessingFailedError):
        pool.stop()
    with pytest.raises(ConfigError, match="runs only once"):
        pool.run()


def test_the_error_of_a_background_pool_is_raised_at_the_end(group_of: Any, fake_consumer: Any) -> None:
    def act(record: Any) -> None:
        raise SystemExit("even this")

    def use() -> None:
        with KeyedWorkerPool(fake_consumer(group_of([["a"]])), act, topics=["orders"]) as pool:
            pool._ended.wait(WAIT_S)

    with pytest.raises(ProcessingFailedError, match="SystemExit"):
        use()


def test_records_may_be_skipped_or_handed_over(
    group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]
) -> None:
    def act(record: Any) -> None:
        if record.offset % 3 == 0:
            raise ValueError(record.offset)

    dead: list[tuple[int, str]] = []
    for on_failure in ("skip", lambda record, error: dead.append((record.offset, repr(error)))):
        group = group_of([["a"] * 9])
        pool = KeyedWorkerPool(
            fake_consumer(group), act, topics=["orders"], attempts=1, on_failure=on_failure, poll_timeout_s=0.01
        )
        with pool:
            wait_until(lambda pool=pool: pool.metrics().done == 9, "all are done with")
        assert group.committed == group.end()
        metrics = pool.metrics()
        assert (metrics.skipped, metrics.dead_lettered) == ((3, 0) if on_failure == "skip" else (0, 3))
    assert dead == [(0, "ValueError(0)"), (3, "ValueError(3)"), (6, "ValueError(6)")]


def test_a_failing_hand_over_stops_the_pool(group_of: Any, fake_consumer: Any) -> None:
    def act(record: Any) -> None:
        raise ValueError

    def on_failure(record: Any, error: Exception) -> None:
        raise OSError("no dead letters today")

    group = group_of([["a", "a"]])
    pool = KeyedWorkerPool(fake_consumer(group), act, topics=["orders"], attempts=1, on_failure=on_failure)
    with pytest.raises(ProcessingFailedError, match="no dead letters today"):
        pool.run()
    assert group.committed == {}


def test_reading_pauses_at_the_limit_while_polls_go_on(
    group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]
) -> None:
    group = group_of([["a"] * 500])
    consumer = fake_consumer(group)
    go_on = threading.Event()
    pool = KeyedWorkerPool(
        consumer, lambda record: go_on.wait(WAIT_S), topics=["orders"], max_in_flight=20, poll_timeout_s=0.005
    )
    with pool:
        wait_until(lambda: pool.metrics().in_flight == 20, "the limit is reached")
        polls = consumer.polls
        wait_until(lambda: consumer.polls > polls + 5, "it is polled on")
        metrics = pool.metrics()
        assert metrics.in_flight == 20
        assert metrics.paused == {group.places[0]}
        assert (metrics.running, metrics.done) == (1, 0)
        go_on.set()
        wait_until(lambda: pool.metrics().done == 500, "all are handled")
    assert group.committed == group.end()


def test_revoked_partitions_are_drained_and_committed_first(
    group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]
) -> None:
    """What runs is finished, what waits is left; the new owner begins behind what was committed."""
    group = group_of([["a"] * 20, ["a"] * 20])
    began, go_on = threading.Event(), threading.Event()
    told: list[tuple[str, list[Any]]] = []

    def act(record: Any) -> None:
        if record.partition == 0 and record.offset == 5:
            began.set()
            assert go_on.wait(WAIT_S)

    class Listener(RebalanceListener):
        def on_partitions_revoked(self, partitions: Any) -> None:
            told.append(("revoked", list(partitions)))
            assert group.committed[group.places[0]] == 6

        def on_partitions_assigned(self, partitions: Any) -> None:
            told.append(("assigned", list(partitions)))

    handler = Handler(act)
    consumer = fake_consumer(group)
    pool = KeyedWorkerPool(consumer, handler, topics=["orders"], listener=Listener(), poll_timeout_s=0.01)
    with pool:
        assert began.wait(WAIT_S)
        group.events.append(("revoked", group.places[:1]))
        wait_until(lambda: not group.events, "the listener is being called")
        go_on.set()
        wait_until(lambda: told[-1][0] == "revoked", "it is drained")
        assert handler.handled[(0, b"a")] == list(range(6))
        group.events.append(("assigned", group.places[:1]))
        wait_until(lambda: handler.count == 40, "all are handled")
    assert handler.handled[(0, b"a")] == list(range(20)), "nothing was repeated"
    assert group.committed == group.end()
    assert [name for name, _ in told] == ["assigned", "revoked", "assigned"]


def test_draining_may_finish_what_waits_too(group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]) -> None:
    group = group_of([["a"] * 10])
    began, go_on = threading.Event(), threading.Event()

    def act(record: Any) -> None:
        began.set()
        assert go_on.wait(WAIT_S)

    pool = KeyedWorkerPool(fake_consumer(group), Handler(act), topics=["orders"], drain="all", poll_timeout_s=0.01)
    with pool:
        assert began.wait(WAIT_S)
        group.events.append(("revoked", group.places))
        wait_until(lambda: not group.events, "the listener is being called")
        go_on.set()
        wait_until(lambda: group.committed == group.end(), "what waited is finished and committed")


def test_a_handler_that_outlasts_the_drain_does_not_count(
    group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]
) -> None:
    """Its record is handled again by the next owner; if that is this pool, not before the old handler has ended."""
    group = group_of([["a"] * 3])
    began, go_on = threading.Event(), threading.Event()
    calls: list[int] = []

    def act(record: Any) -> None:
        calls.append(record.offset)
        if len(calls) == 1:
            began.set()
            assert go_on.wait(WAIT_S)

    assigned: list[Any] = []

    class Listener(RebalanceListener):
        def on_partitions_assigned(self, partitions: Any) -> None:
            assigned.append(partitions)

    consumer = fake_consumer(group)
    with KeyedWorkerPool(
        consumer,
        Handler(act),
        topics=["orders"],
        listener=Listener(),
        drain_timeout_s=0.02,
        poll_timeout_s=0.01,
        commit_interval_s=0,
    ) as pool:
        assert began.wait(WAIT_S)
        group.events.extend([("revoked", group.places), ("assigned", group.places)])
        wait_until(lambda: len(assigned) == 2 and pool.metrics().in_flight == 3, "it was assigned and read again")
        assert calls == [0]
        assert group.committed == {}
        go_on.set()
        wait_until(lambda: pool.metrics().done == 3, "all are handled")
    assert calls == [0, 0, 1, 2]
    assert group.committed == group.end()


def test_lost_partitions_are_dropped_without_a_commit(
    group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]
) -> None:
    group = group_of([["a"] * 5])
    began, go_on = threading.Event(), threading.Event()
    failing: list[int] = []

    def act(record: Any) -> None:
        if record.offset == 2 and not began.is_set():
            began.set()
            assert go_on.wait(WAIT_S)
            failing.append(record.offset)
            raise ValueError("its partition is gone, so this stops nobody")

    with KeyedWorkerPool(
        fake_consumer(group), act, topics=["orders"], poll_timeout_s=0.01, attempts=1, commit_interval_s=100
    ) as pool:
        assert began.wait(WAIT_S)
        group.events.append(("lost", group.places))
        wait_until(lambda: pool.metrics().in_flight == 0, "it is dropped")
        assert group.committed == {}
        go_on.set()
        wait_until(lambda: bool(failing), "the old handler ended")
        group.events.append(("assigned", group.places))
        wait_until(lambda: pool.metrics().done == 2 + 5, "all are handled again")
    assert group.committed == group.end()


def test_stop_finishes_what_runs_and_leaves_the_rest(
    group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]
) -> None:
    group = group_of([["a"] * 100])
    began, go_on = threading.Event(), threading.Event()

    def act(record: Any) -> None:
        if record.offset == 3:
            began.set()
            assert go_on.wait(WAIT_S)

    consumer = fake_consumer(group)
    handler = Handler(act)
    pool = KeyedWorkerPool(consumer, handler, topics=["orders"], poll_timeout_s=0.01).start()
    assert began.wait(WAIT_S)
    stopper = threading.Thread(target=pool.stop)
    stopper.start()
    polls = consumer.polls
    wait_until(lambda: consumer.polls > polls + 3, "it is polled on while it drains")
    go_on.set()
    stopper.join(WAIT_S)
    assert pool.wait(0)
    assert handler.count == 4
    assert group.committed == {group.places[0]: 4}
    pool.stop()


def test_a_handler_may_stop_the_pool(group_of: Any, fake_consumer: Any) -> None:
    group = group_of([["a"] * 10])
    pool: KeyedWorkerPool[Any]

    def act(record: Any) -> None:
        if record.offset == 4:
            pool.stop()

    pool = KeyedWorkerPool(fake_consumer(group), act, topics=["orders"])
    pool.run()
    assert group.committed[group.places[0]] >= 5


def test_no_thread_is_left(group_of: Any, fake_consumer: Any) -> None:
    before = set(threading.enumerate())
    with KeyedWorkerPool(fake_consumer(group_of(keyed(20))), Handler(), topics=["orders"], workers=16):
        pass
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_partitions_that_were_assigned_by_hand(
    group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]
) -> None:
    group = group_of(keyed(10, partitions=1))
    consumer = fake_consumer(group)
    consumer.assign(group.places)
    handler = Handler()
    with KeyedWorkerPool(consumer, handler, poll_timeout_s=0.01):
        wait_until(lambda: handler.count == 10, "all are handled")
    assert group.committed == group.end()


def test_errors_that_pass_are_borne_and_others_stop(
    group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]
) -> None:
    group = group_of([["a"] * 10])
    consumer = fake_consumer(group)
    consumer.commit_errors.extend([ConnectError("away"), CommitFailedError("a rebalance")])
    consumer.poll_errors.append(ConnectError("away"))
    pool = KeyedWorkerPool(consumer, Handler(), topics=["orders"], poll_timeout_s=0.01, commit_interval_s=0)
    with pool:
        wait_until(lambda: group.committed == group.end(), "it is committed in the end")
    for errors in ("commit_errors", "poll_errors"):
        consumer = fake_consumer(group_of([["a"]]))
        getattr(consumer, errors).append(FatalError("fenced"))
        with pytest.raises(FatalError, match="fenced"):
            KeyedWorkerPool(consumer, Handler(), topics=["orders"], commit_interval_s=0).run()


def test_the_blocks_own_error_is_the_one_that_is_seen(
    group_of: Any, fake_consumer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def act(record: Any) -> None:
        raise ValueError

    def use() -> None:
        with KeyedWorkerPool(fake_consumer(group_of([["a"]])), act, topics=["orders"], attempts=1) as pool:
            assert pool._ended.wait(WAIT_S)
            raise KeyError("the block's")

    with pytest.raises(KeyError, match="the block's"):
        use()
    assert "the worker pool had failed too" in caplog.text


def test_handlers_end_although_the_consumer_is_of_no_use_any_more(
    group_of: Any, fake_consumer: Any, wait_until: Callable[..., None]
) -> None:
    group = group_of([["a"]])
    began, go_on = threading.Event(), threading.Event()
    ended: list[int] = []

    def act(record: Any) -> None:
        began.set()
        assert go_on.wait(WAIT_S)
        ended.append(record.offset)

    consumer = fake_consumer(group)
    pool = KeyedWorkerPool(consumer, act, topics=["orders"], poll_timeout_s=0.01).start()
    assert began.wait(WAIT_S)
    consumer.poll_errors.extend([FatalError("fenced")] * 1000)
    wait_until(lambda: pool._failure is not None, "the consumer failed")
    assert not pool.wait(0)
    go_on.set()
    with pytest.raises(FatalError, match="fenced"):
        pool.wait(WAIT_S)
    assert ended == [0]


def test_a_signal_may_stop_it(group_of: Any, fake_consumer: Any) -> None:
    """The signal handler runs in the thread that polls, wherever that is."""
    group = group_of([["a"] * 100])
    pool: KeyedWorkerPool[Any]

    def act(record: Any) -> None:
        if record.offset == 50:
            signal.raise_signal(signal.SIGUSR1)

    pool = KeyedWorkerPool(fake_consumer(group), act, topics=["orders"], poll_timeout_s=0.01)
    before = signal.signal(signal.SIGUSR1, lambda *_: pool.stop())
    try:
        pool.run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert group.committed[group.places[0]] > 50
