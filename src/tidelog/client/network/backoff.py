"""Growing pauses: each twice the one before, up to a bound, and a little random so that clients do not come in step."""

from __future__ import annotations

import random
from typing import NamedTuple

_JITTER = 0.2  # as Kafka's clients


class Backoff(NamedTuple):
    """Pauses from `first_s` to `longest_s`."""

    first_s: float
    longest_s: float

    def pause_s(self, failures: int) -> float:
        """The pause after so many failures in a row, the first counting 1."""
        # Beyond 2**30 the bound holds anyway, and no float overflows.
        growing = self.first_s * 2.0 ** min(max(failures - 1, 0), 30)
        return min(growing, self.longest_s) * random.uniform(1 - _JITTER, 1 + _JITTER)
