"""The examples of the page about transactions run as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.testing import Broker

# The first members of a group are not waited for, which would take three seconds for each of the page's groups.
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "transaction.two.phase.commit.enable": True,
    "unstable.api.versions.enable": True,
}


def test_the_examples_of_the_transactions_page(
    examples: Callable[[str], list[Any]], runner: Any, start_broker: Callable[..., Broker]
) -> None:
    page = examples("docs/transactions.md")
    assert {example.language for example in page} == {"sh", "python"}
    runner.bootstrap = start_broker(settings=SETTINGS).bootstrap
    for example in page:
        runner.run(example)
