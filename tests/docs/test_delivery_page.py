"""The examples of the page about delivery run as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.testing import Broker


def test_the_examples_of_the_delivery_page(
    examples: Callable[[str], list[Any]], runner: Any, start_broker: Callable[..., Broker]
) -> None:
    page = examples("docs/delivery.md")
    assert {example.language for example in page} == {"sh", "python"}
    runner.bootstrap = start_broker(settings={"group.initial.rebalance.delay.ms": 0}).bootstrap
    for example in page:
        runner.run(example)
