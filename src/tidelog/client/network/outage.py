"""Telling people that no broker can be reached, while a client goes on trying in the background.

What always holds: it is told once when it begins, again after waits that double, and once when it is over, however
often connections are tried. Time is given by the caller.
"""

from __future__ import annotations

import logging

from tidelog.client.errors import ClientError

log = logging.getLogger(__name__)

_FIRST_REMINDER_S = 10.0
_LONGEST_WAIT_S = 600.0


class OutageLog:
    """Whether brokers can be reached, as warnings in the log."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._began_s: float | None = None
        self._next_s = 0.0
        self._wait_s = _FIRST_REMINDER_S

    def failed(self, error: ClientError, now_s: float) -> None:
        """All known brokers were tried, and none could be reached."""
        if self._began_s is None:
            self._began_s = now_s
            self._wait_s = _FIRST_REMINDER_S
            log.warning("client %s reaches no broker, trying again: %s", self._client_id, error)
        elif now_s >= self._next_s:
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
            since_s = now_s - self._began_s
            log.warning("client %s has reached no broker for %.0f s: %s", self._client_id, since_s, error)
        else:
            return
        self._next_s = now_s + self._wait_s

    def reached(self, now_s: float) -> None:
        """A connection was made."""
        if self._began_s is not None:
            log.warning("client %s reaches a broker again, after %.1f s", self._client_id, now_s - self._began_s)
            self._began_s = None
