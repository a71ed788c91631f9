"""List-append: transactions that read lists and append to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from tidelog.torture.workers import appender
from tidelog.torture.workers.appender import AppenderOrders
from tidelog.torture.workloads.driving import DrivenWorkload

_KEYS_AT_FIRST: Final = 8
_APPENDERS: Final = 3
_APPENDS_EACH: Final = 2.0  # of a transaction, on average


class AppendWorkload(DrivenWorkload):
    """Appenders over a few keys that fence each other all the time."""

    name: ClassVar[str] = "append"
    about: ClassVar[str] = "list-append transactions over a few keys, all under one transactional id"
    default_rate: ClassVar[float] = 30.0

    def topics(self) -> Mapping[str, int]:
        return {self.topic(): _KEYS_AT_FIRST}

    def add_posts(self) -> None:
        rate = self.place.rate / _APPENDS_EACH / _APPENDERS
        for number in range(_APPENDERS):
            orders = AppenderOrders(
                **self.common_orders(f"worker-{number}"),
                topic=self.topic(),
                transactional_id=self.topic(),
                rate=rate,
            )
            self.add_sender(self.python_post(orders, appender.__name__))
