"""Warnings about failed records: `send_nowait` returns no future that would report them.

What always holds: every failed record is counted in a warning. For each cause (a topic and a kind of error) there is
one warning immediately and more after intervals that double, however many batches fail. The caller passes in the time,
and keeps threads apart.
"""

from __future__ import annotations

import logging
import math

from tidelog.client.errors import BrokerError, ClientError
from tidelog.client.network.outage import Reminders

logger = logging.getLogger(__name__)


class _Cause:
    __slots__ = ("error", "records", "reminders")

    def __init__(self, error: ClientError) -> None:
        self.error = error  # the latest
        self.records = 0  # not counted by any warning yet
        self.reminders = Reminders()


class FailureLog:
    """Counts the records that failed, and logs it."""

    def __init__(self) -> None:
        self._causes: dict[tuple[str, str], _Cause] = {}
        self._has_untold = False

    def note(self, topic: str, records: int, error: ClientError) -> None:
        """These records failed; the next `tell` reports them."""
        kind = error.code.name if isinstance(error, BrokerError) else type(error).__name__
        cause = self._causes.get((topic, kind))
        if cause is None:
            cause = self._causes[topic, kind] = _Cause(error)
        cause.error = error
        cause.records += records
        self._has_untold = True

    def tell(self, now_ms: float) -> float:
        """Warn of failures since the last time; returns when to call again for those it is too early for."""
        if not self._has_untold:
            return math.inf
        self._has_untold = False
        next_s = math.inf
        for (topic, _), cause in self._causes.items():
            if not cause.records:
                continue
            if cause.reminders.is_due(now_ms / 1000):
                _warn(topic, cause)
            else:
                self._has_untold = True
                next_s = min(next_s, cause.reminders.next_s)
        return next_s * 1000

    def tell_all(self) -> None:
        """The producer is closing: log whatever has not been logged."""
        for (topic, _), cause in self._causes.items():
            if cause.records:
                _warn(topic, cause)


def _warn(topic: str, cause: _Cause) -> None:
    count = "1 record" if cause.records == 1 else f"{cause.records} records"
    logger.warning("%s to topic %s failed: %s", count, topic, cause.error)
    cause.records = 0
