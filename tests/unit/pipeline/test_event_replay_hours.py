"""Quiet hours, also over midnight, and the next time of a day."""

from __future__ import annotations

from datetime import datetime, time

import pytest

from tidelog.pipeline.event_replay.hours import QuietHours, next_time, parse_time_of_day


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-03-01T{text}")


@pytest.mark.parametrize(
    ("hours", "now", "inside"),
    [
        ("01:00-05:00", "00:59:59", False),
        ("01:00-05:00", "01:00:00", True),
        ("01:00-05:00", "04:59:59", True),
        ("01:00-05:00", "05:00:00", False),
        ("22:30-06:00", "22:29:59", False),
        ("22:30-06:00", "23:59:59", True),
        ("22:30-06:00", "00:00:00", True),
        ("22:30-06:00", "06:00:00", False),
    ],
)
def test_when_it_is_quiet(hours: str, now: str, inside: bool) -> None:
    assert QuietHours.parse(hours).contain(at(now)) is inside


def test_the_next_time_of_a_day() -> None:
    assert next_time(time(2), at("01:00:00")) == at("02:00:00")
    assert next_time(time(2), at("02:00:30")) == at("02:00:30"), "it is that minute"
    assert next_time(time(2), at("02:01:00")) == datetime.fromisoformat("2026-03-02T02:00:00")
    assert QuietHours.parse("2:00-3:30").next_start(at("01:00:00")) == at("02:00:00")


@pytest.mark.parametrize("text", ["", "02:00", "2-3", "25:00-01:00", "01:60-02:00", "01:00-01:00", "01:00-"])
def test_what_are_no_hours(text: str) -> None:
    with pytest.raises(ValueError):
        QuietHours.parse(text)


def test_what_is_no_time_of_day() -> None:
    assert parse_time_of_day("2:05") == time(2, 5)
    with pytest.raises(ValueError):
        parse_time_of_day("2")
