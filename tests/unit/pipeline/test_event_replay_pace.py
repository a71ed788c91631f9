"""The rate of a replay, and the time left."""

from __future__ import annotations

import pytest

from tidelog.pipeline.event_replay.pace import CHUNK_OFFSETS, Pace, Speed, parse_rate


@pytest.mark.parametrize(
    ("text", "rate"), [("5000", 5000), ("5k", 5000), ("2.5K/s", 2500), ("1M", 1e6), ("0.5", 0.5), ("10 /s", 10)]
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "-5", "fast", "5 rows", "1e3"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError):
        parse_rate(text)


@pytest.mark.parametrize("rate", [0.5, 3.0, 999.0, 10_000.0, 3_000_000.0])
@pytest.mark.parametrize("work_s", [0.0, 0.2, 5.0])
def test_no_more_is_begun_than_the_rate_allows(rate: float, work_s: float) -> None:
    pace, now_s, begun = Pace(rate), 100.0, 0
    for _ in range(50):
        now_s += pace.wait_s(now_s)
        assert begun <= rate * (now_s - 100.0) + 1e-6
        pace.begin(pace.chunk_offsets, now_s)
        begun += pace.chunk_offsets
        now_s += work_s
    if work_s == 0.0:
        assert begun == pytest.approx(rate * (now_s - 100.0), rel=0.05, abs=pace.chunk_offsets)


def test_without_a_rate_nothing_waits() -> None:
    pace = Pace(None)
    assert pace.chunk_offsets == CHUNK_OFFSETS
    pace.begin(CHUNK_OFFSETS, 1.0)
    assert pace.wait_s(1.0) == 0.0


def test_the_time_left_follows_the_speed_of_the_last_while() -> None:
    speed = Speed()
    assert speed.left_s(100) is None
    speed.note(0.0, 0)
    assert speed.left_s(100) is None
    speed.note(10.0, 1000)
    assert speed.left_s(500) == 5.0
    for second in range(11, 60):
        speed.note(float(second), 1000)
    assert speed.left_s(500) is None, "it stands still"
