"""Sends the shop's events to the broker from its own thread, as the producers of a real shop would.

What always holds: every event is sent once, in the order of its time, and is stored when its part is reported as done.
Until `go_on` is called, the events flow ever more slowly and never run out, so that whatever happens to the pipeline
happens while they flow.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Self

from tidelog.client.producer.producer import Producer
from tidelog.demo.processes import DemoError
from tidelog.demo.shop import Shop

SLICE_S = 0.2
SLOWING_S = 6.0  # after this time, two thirds of the first part have been sent
FIRST_PART = 0.6  # is never reached before `go_on`
REST_S = 4.0  # the time for the rest


class Traffic:
    """Sends the events of a shop up to a share of them; use it with `with`."""

    def __init__(self, shop: Shop, bootstrap: str, until: float) -> None:
        self._shop = shop
        self._producer = Producer(bootstrap_servers=bootstrap, linger_ms=5, batch_size=256 * 1024)
        self._until = until
        self._going_on_s: float | None = None
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name="demo-traffic", daemon=True)
        self.share = 0.0
        """The share of all events that is stored."""

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.close(5.0)

    def go_on(self) -> None:
        """Send the rest."""
        self._going_on_s = time.monotonic()

    @property
    def is_done(self) -> bool:
        if self._error is not None:
            raise DemoError(f"events could not be sent: {self._error}") from self._error
        return self.share >= self._until

    def send(self, last: float) -> None:
        """Send everything up to this share now; only from the thread, or after it has ended."""
        sent = [
            self._producer.send_arrow(events.topic, events.between(self.share, last), timestamp="at")
            for events in self._shop
        ]
        for each in sent:
            each.result(timeout=60)
        self.share = last

    def _guarded(self) -> None:
        try:
            while self.share < self._until and not self._ended.wait(SLICE_S):
                self.send(self._due())
        except Exception as error:  # noqa: BLE001 - is_done raises it in the thread of the story
            self._error = error

    def _due(self) -> float:
        """The share that should have been sent by now."""
        now_s = time.monotonic()
        end_s = self._going_on_s if self._going_on_s is not None else now_s
        first = FIRST_PART * self._until * (1 - math.exp((self._began_s - end_s) / SLOWING_S))
        if self._going_on_s is None:
            return max(self.share, first)
        rest = min(1.0, (now_s - self._going_on_s) / REST_S)
        return max(self.share, first + (self._until - first) * rest)
