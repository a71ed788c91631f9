"""Growing pauses: each twice the one before, up to a bound, with jitter so that clients don't retry in lockstep."""

from __future__ import annotations

import random
from typing import NamedTuple

_JITTER = 0.2  # as in Kafka's clients


class Backoff(NamedTuple):
    """Pauses from `first_s` to `longest_s`."""

    first_s: float
    longest_s: float

    @property
    def longest_pause_s(self) -> float:
        """No pause is longer than this."""
        return self.longest_s * (1 + _JITTER)

    def pause_s(self, failures: int) -> float:
        """The pause after this many failures in a row, counting from 1."""
        # Beyond 2**30 the bound holds anyway, and no float overflows.
        growing = self.first_s * 2.0 ** min(max(failures - 1, 0), 30)
        return min(growing, self.longest_s) * random.uniform(1 - _JITTER, 1 + _JITTER)
