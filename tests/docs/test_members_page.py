"""The examples of the page about consumers in groups run as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.testing import Broker


def test_the_examples_of_the_members_page(
    examples: Callable[[str], list[Any]], runner: Any, start_broker: Callable[..., Broker]
) -> None:
    runner.bootstrap = start_broker(settings={"group.initial.rebalance.delay.ms": 0}).bootstrap
    page = examples("docs/members.md")
    assert [example.language for example in page] == ["sh"] + ["python"] * 4
    assert all(example.expected for example in page[1:])
    for example in page:
        runner.run(example)
