from __future__ import annotations

from tidelog.common.watchdog import Watchdog


def test_it_bites_only_when_nothing_moves() -> None:
    now_s = 0.0
    watchdog = Watchdog(300.0, lambda: now_s)
    for step in range(100):  # however slow, as long as something moves
        now_s += 299.0
        assert not watchdog.is_standstill(step)
    now_s += 300.0
    assert not watchdog.is_standstill(99)
    now_s += 1.0
    assert watchdog.is_standstill(99)
    assert not watchdog.is_standstill(100)
