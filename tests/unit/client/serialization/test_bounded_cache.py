"""A cache that asks once, forgets what came first, and keeps no failures."""

from __future__ import annotations

import threading

import pytest

from tidelog.client.serialization.bounded_cache import BoundedCache


class Source:
    """Brings a value and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        return self.asked


def test_what_is_there_is_not_asked_for_again() -> None:
    cache, source = BoundedCache[str, int](2), Source()
    assert [cache.get_or_load("a", source) for _ in range(3)] == [1, 1, 1]


def test_those_that_came_first_go_first() -> None:
    cache, source = BoundedCache[str, int](2), Source()
    for key in ("a", "b", "a", "c"):
        cache.get_or_load(key, source)
    assert len(cache) == 2
    assert cache.get_or_load("b", source) == 2
    assert cache.get_or_load("a", source) == 4
    cache.clear()
    assert cache.get_or_load("a", source) == 5


def test_an_entry_has_its_lifetime() -> None:
    now = 0.0
    cache, source = BoundedCache[str, int](2, lifetime_s=10, clock=lambda: now), Source()
    cache.get_or_load("a", source)
    now = 9.9
    assert cache.get_or_load("a", source) == 1
    now = 10.0
    assert cache.get_or_load("a", source) == 2
    assert len(cache) == 1


def test_failures_are_not_kept() -> None:
    cache, source = BoundedCache[str, int](2), Source()

    def fail() -> int:
        raise ValueError("not now")

    with pytest.raises(ValueError, match="not now"):
        cache.get_or_load("a", fail)
    assert cache.get_or_load("a", source) == 1


def test_one_thread_asks_and_others_go_on() -> None:
    cache = BoundedCache[str, int](10)
    asking, may_answer = threading.Event(), threading.Event()
    source = Source()

    def slowly() -> int:
        asking.set()
        assert may_answer.wait(10)
        return source()

    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(cache.get_or_load("a", slowly))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert asking.wait(10)
    # Another key is not held up by those who wait.
    assert cache.get_or_load("b", lambda: 7) == 7
    may_answer.set()
    for thread in threads:
        thread.join(10)
    assert results == [1, 1, 1, 1]
    assert source.asked == 1


def test_threads_that_wait_for_a_failure_try_themselves() -> None:
    cache = BoundedCache[str, int](10)
    asking, may_fail = threading.Event(), threading.Event()
    source = Source()

    def fail() -> int:
        asking.set()
        assert may_fail.wait(10)
        raise ValueError("not now")

    failures: list[Exception] = []

    def first() -> None:
        try:
            cache.get_or_load("a", fail)
        except ValueError as error:
            failures.append(error)

    failing = threading.Thread(target=first)
    failing.start()
    assert asking.wait(10)
    results: list[int] = []
    waiting = threading.Thread(target=lambda: results.append(cache.get_or_load("a", source)))
    waiting.start()
    may_fail.set()
    failing.join(10)
    waiting.join(10)
    assert len(failures) == 1
    assert results == [1]
