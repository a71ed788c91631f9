"""The pace of a replay against a modelled broker, with time that passes in windows."""

from __future__ import annotations

import random

import pytest

from tidelog.pipeline.versions.pacing import (
    ROWS_PER_S_MIN,
    ROWS_PER_S_START,
    Pace,
    adapted,
    rows_of_batch,
    seconds_left,
    tail_ms,
)

WINDOWS = 400


def _probes(random_: random.Random, usual_ms: float, load: float) -> list[float]:
    """Of a broker that gets slower as its load comes near to what it can do."""
    slowed = usual_ms / max(1 - load, 0.02)
    return [slowed * random_.uniform(0.8, 1.2) for _ in range(20)]


@pytest.mark.parametrize("seed", range(10))
def test_it_settles_below_what_hurts_and_above_a_quarter_of_it(seed: int) -> None:
    random_ = random.Random(seed)
    capacity = random_.choice([20_000.0, 200_000.0, 2_000_000.0])
    pace = Pace(normal_ms=tail_ms(_probes(random_, 2.0, 0.1)))
    rates, slow_windows = [], 0
    for _ in range(WINDOWS):
        probes = _probes(random_, 2.0, 0.1 + pace.rows_per_s / capacity)
        slow_windows += tail_ms(probes) > pace.slow_ms
        pace = adapted(pace, probes, used_rows_per_s=pace.rows_per_s)
        rates.append(pace.rows_per_s)
    settled = rates[WINDOWS // 2 :]
    # The broker counts as slower from a load of about 0.5 on: about 0.4 of the capacity are left to the replay.
    assert max(settled) < 0.75 * capacity
    assert sum(settled) / len(settled) > 0.15 * capacity
    assert slow_windows < WINDOWS * 0.3


def test_it_gives_way_when_live_traffic_grows_and_comes_back_afterwards() -> None:
    random_ = random.Random(1)
    capacity = 100_000.0
    pace = Pace(normal_ms=tail_ms(_probes(random_, 2.0, 0.1)))
    means = []
    for live in (0.1, 0.45, 0.1):
        rates = []
        for _ in range(WINDOWS):
            pace = adapted(pace, _probes(random_, 2.0, live + pace.rows_per_s / capacity), pace.rows_per_s)
            rates.append(pace.rows_per_s)
        means.append(sum(rates[WINDOWS // 2 :]) / (WINDOWS // 2))
    before, during, after = means
    assert during < before / 2
    assert after > before * 0.8


def test_a_broker_that_gets_slow_for_other_reasons_does_not_starve_the_replay() -> None:
    pace = Pace(normal_ms=2.0)
    lowest = pace.rows_per_s
    for _ in range(60):
        assert pace.rows_per_s >= ROWS_PER_S_MIN
        pace = adapted(pace, [50.0] * 20, pace.rows_per_s)
        lowest = min(lowest, pace.rows_per_s)
    assert lowest == ROWS_PER_S_MIN
    assert pace.normal_ms == 50.0
    assert pace.rows_per_s > ROWS_PER_S_START
    # In good times the normal comes down again, so that the next slowness is noticed.
    for _ in range(60):
        pace = adapted(pace, [2.0] * 20, pace.rows_per_s)
    assert pace.normal_ms < 2.2


@pytest.mark.parametrize("seed", range(5))
def test_noise_that_is_not_the_replays_does_not_hold_it_back_for_long(seed: int) -> None:
    """On a busy machine one window in four is slow whatever the replay does."""
    random_ = random.Random(seed)
    pace = Pace(normal_ms=3.0)
    rates = []
    for _ in range(WINDOWS):
        usual = 30.0 if random_.random() < 0.25 else 2.0
        pace = adapted(pace, [usual * random_.uniform(0.8, 1.2) for _ in range(20)], min(pace.rows_per_s, 1e6))
        rates.append(min(pace.rows_per_s, 1e6))
    assert sum(rates) / len(rates) > 2 * ROWS_PER_S_START


def test_a_rate_that_is_not_used_is_not_raised() -> None:
    pace = Pace(rows_per_s=10_000, normal_ms=2.0)
    for _ in range(50):
        pace = adapted(pace, [2.0] * 20, used_rows_per_s=100)
    assert pace.rows_per_s == 10_000


def test_it_doubles_until_the_broker_gets_slower_for_the_first_time() -> None:
    pace = Pace(normal_ms=2.0)
    pace = adapted(pace, [2.0] * 20, pace.rows_per_s)
    assert pace.rows_per_s == 2 * ROWS_PER_S_START
    pace = adapted(pace, [20.0] * 20, 0)  # one slow window may be anybody's doing
    assert pace.rows_per_s == 2 * ROWS_PER_S_START
    pace = adapted(pace, [20.0] * 20, pace.rows_per_s)
    assert (pace.rows_per_s, pace.too_much) == (ROWS_PER_S_START, 2 * ROWS_PER_S_START)
    pace = adapted(pace, [2.0] * 20, pace.rows_per_s)
    assert pace.rows_per_s == pytest.approx(ROWS_PER_S_START + 0.08 * 2 * ROWS_PER_S_START)


def test_one_slow_probe_in_a_window_changes_nothing_and_no_probes_neither() -> None:
    pace = Pace(normal_ms=2.0)
    assert adapted(pace, [2.0] * 19 + [500.0], pace.rows_per_s).rows_per_s > pace.rows_per_s
    assert adapted(pace, [], pace.rows_per_s) == pace


def test_rows_of_a_batch() -> None:
    assert rows_of_batch(1000, trigger_s=1, batch_s=0.2) == 1000
    assert rows_of_batch(1000, trigger_s=1, batch_s=2) == 2000
    assert rows_of_batch(1000, trigger_s=0, batch_s=0.5) == 500
    assert rows_of_batch(1000, trigger_s=10, batch_s=1) == 10_000
    assert rows_of_batch(1000, trigger_s=1, batch_s=60) == 5000
    assert rows_of_batch(0.1, trigger_s=1, batch_s=1) == 1


def test_time_left() -> None:
    assert seconds_left(0, 0) == 0
    assert seconds_left(100, 10) == 10
    assert seconds_left(100, 10, arriving_rows_per_s=5) == 20
    assert seconds_left(100, 5, arriving_rows_per_s=5) is None
    assert seconds_left(100, 0) is None
