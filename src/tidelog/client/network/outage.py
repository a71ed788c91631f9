"""Warnings about failures that a client keeps retrying in the background, such as unreachable brokers.

What always holds: however often the client retries, it warns once when a failure begins, then after intervals that
double, and for an outage once more when it is over. The caller passes in the time.
"""

from __future__ import annotations

import logging
import math

from tidelog.client.errors import ClientError

logger = logging.getLogger(__name__)

_FIRST_REMINDER_S = 10.0
_LONGEST_WAIT_S = 600.0


class Reminders:
    """Decides when a continuing failure is worth a log line."""

    def __init__(self) -> None:
        self._next_s: float | None = None
        self._wait_s = _FIRST_REMINDER_S

    @property
    def next_s(self) -> float:
        """When the next log line is due: immediately, before the first one."""
        return -math.inf if self._next_s is None else self._next_s

    def is_due(self, now_s: float) -> bool:
        """It has failed again; returns whether to log it."""
        if self._next_s is None:
            self._wait_s = _FIRST_REMINDER_S
        elif now_s < self._next_s:
            return False
        else:
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        self._next_s = now_s + self._wait_s
        return True

    def reset(self) -> None:
        """It has succeeded; the next failure counts as a new one."""
        self._next_s = None


class OutageLog:
    """Logs warnings about whether brokers can be reached."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._began_s: float | None = None
        self._reminders = Reminders()

    def failed(self, error: ClientError, now_s: float) -> None:
        """All known brokers were tried, and none could be reached."""
        if not self._reminders.is_due(now_s):
            return
        if self._began_s is None:
            self._began_s = now_s
            logger.warning("client %s can't reach any broker, retrying: %s", self._client_id, error)
        else:
            since_s = now_s - self._began_s
            logger.warning("client %s has not reached any broker for %.0f s: %s", self._client_id, since_s, error)

    def reached(self, now_s: float) -> None:
        """A connection was established."""
        if self._began_s is not None:
            logger.warning("client %s has reached a broker again after %.1f s", self._client_id, now_s - self._began_s)
            self._began_s = None
            self._reminders.reset()
