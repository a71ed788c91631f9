"""A peer that repeats its mistake gets a few lines, and the rest is counted."""

from __future__ import annotations

import logging

import pytest

from tidelog.broker.log_limit import LimitedLog


def test_lines_beyond_the_limit_are_counted_and_told_later(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    log = LimitedLog(logging.getLogger("peers"), lambda: now_s)
    for number in range(1000):
        log.log(logging.WARNING, "mistake %d", number)
    assert [record.getMessage() for record in caplog.records] == [f"mistake {number}" for number in range(20)]
    caplog.clear()
    now_s += 11
    log.log(logging.WARNING, "another")
    assert [record.getMessage() for record in caplog.records] == [
        "980 more lines about connections were suppressed",
        "another",
    ]


def test_lines_below_the_level_cost_nothing_of_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(logging.getLogger("peers"))
    for _ in range(100):
        log.log(logging.DEBUG, "closed by the peer")
    log.log(logging.WARNING, "mistake")
    assert [record.getMessage() for record in caplog.records] == ["mistake"]
