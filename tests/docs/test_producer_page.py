"""The examples of the page about producers run as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.testing import Broker


def test_the_examples_of_the_producer_page(
    examples: Callable[[str], list[Any]], runner: Any, tidelog_broker: Broker
) -> None:
    page = examples("docs/producer.md")
    assert all(example.expected for example in page)
    runner.bootstrap = tidelog_broker.bootstrap
    for example in page:
        runner.run(example)
