"""Pauses double up to their bound and are a little random."""

from __future__ import annotations

import pytest

from tidelog.client.network.backoff import Backoff


@pytest.mark.parametrize(("failures", "middle_s"), [(0, 0.1), (1, 0.1), (2, 0.2), (3, 0.4), (5, 1.0), (10_000, 1.0)])
def test_pauses_grow_to_the_bound(failures: int, middle_s: float) -> None:
    pauses = [Backoff(0.1, 1.0).pause_s(failures) for _ in range(200)]
    assert all(middle_s * 0.8 <= pause <= middle_s * 1.2 for pause in pauses)
    assert len(set(pauses)) > 100
