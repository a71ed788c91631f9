"""Transactions: sends, polls and the offsets of the polls count together or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from tidelog.torture.workers import poller, transactor
from tidelog.torture.workers.poller import PollerOrders
from tidelog.torture.workers.transactor import TransactorOrders
from tidelog.torture.workloads.driving import DrivenWorkload

_PARTITIONS: Final = 4
_TRANSACTORS: Final = 3


class TransactionsWorkload(DrivenWorkload):
    """Transactors of one group that poll what they send; a poller beside them."""

    name: ClassVar[str] = "transactions"
    about: ClassVar[str] = "sends, polls and their offsets in transactions, some aborted on purpose"
    default_rate: ClassVar[float] = 1_500.0

    def topics(self) -> Mapping[str, int]:
        return {self.topic(): _PARTITIONS}

    def add_posts(self) -> None:
        place, topic = self.place, self.topic()
        for number in range(_TRANSACTORS):
            orders = TransactorOrders(
                **self.common_orders(f"worker-{number}"),
                topic=topic,
                partitions=_PARTITIONS,
                group=topic,
                transactional_id=f"{topic}-{number}",
                rate=place.rate / _TRANSACTORS,
            )
            self.add_member(self.python_post(orders, transactor.__name__), topic, topic)
        reading = PollerOrders(
            **self.common_orders("assign-0"), topic=topic, partitions=_PARTITIONS, isolation="read_committed"
        )
        self.add_poller(self.python_post(reading, poller.__name__))

    def writing_members(self, members: Sequence[str]) -> Sequence[str]:
        return members
