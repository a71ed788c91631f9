"""The thread of the metadata store: order, repetition, and its end."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator

import pytest

from tidelog.metadata.sql_thread import SqlThread

DEADLINE_S = 30


@pytest.fixture
def thread() -> Iterator[SqlThread]:
    thread = SqlThread("under test")
    yield thread
    thread.shutdown()


def test_calls_run_in_order_in_one_thread(thread: SqlThread) -> None:
    done: list[int] = []

    def note(n: int) -> int:
        done.append(n)
        return threading.get_ident()

    futures = [thread.submit(functools.partial(note, n)) for n in range(50)]
    idents = {future.result(DEADLINE_S) for future in futures}
    assert done == list(range(50))
    assert len(idents) == 1
    assert idents != {threading.get_ident()}


def test_an_error_goes_to_whoever_submitted_the_call(thread: SqlThread) -> None:
    with pytest.raises(ZeroDivisionError):
        thread.submit(lambda: 1 // 0).result(DEADLINE_S)
    assert thread.submit(lambda: 1).result(DEADLINE_S) == 1


def test_a_cancelled_call_does_not_run(thread: SqlThread) -> None:
    gate = threading.Event()
    ran: list[int] = []
    thread.submit(gate.wait)
    waiting = thread.submit(lambda: ran.append(1))
    assert waiting.cancel()
    gate.set()
    thread.submit(lambda: None).result(DEADLINE_S)
    assert ran == []


def test_a_repeated_call_comes_while_others_are_always_waiting(thread: SqlThread) -> None:
    beats = threading.Semaphore(0)
    stop = thread.repeat(beats.release, 0.01)
    stopped = threading.Event()

    def submit_another() -> None:
        if not stopped.is_set():
            thread.submit(submit_another)

    submit_another()
    for _ in range(5):
        assert beats.acquire(timeout=DEADLINE_S)
    stopped.set()
    stop()
    thread.submit(lambda: None).result(DEADLINE_S)
    while beats.acquire(blocking=False):
        pass
    assert not beats.acquire(timeout=0.1)


def test_a_repeated_call_that_fails_is_logged_and_comes_again(
    thread: SqlThread, caplog: pytest.LogCaptureFixture
) -> None:
    beats = threading.Semaphore(0)

    def fail() -> None:
        beats.release()
        raise ValueError("a bug")

    thread.repeat(fail, 0.01)
    for _ in range(3):
        assert beats.acquire(timeout=DEADLINE_S)
    assert "a repeated call of the metadata thread failed" in caplog.text


def test_what_was_submitted_before_the_shutdown_still_runs() -> None:
    thread = SqlThread("under test")
    gate = threading.Event()
    thread.submit(gate.wait)
    last = thread.submit(lambda: "done")
    thread.shutdown()
    gate.set()
    assert last.result(DEADLINE_S) == "done"
    with pytest.raises(RuntimeError, match="shut down"):
        thread.submit(lambda: None)
