"""The examples of the page about consumer groups run as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.testing import Broker

# Members of the new protocol are told to speak often, so that a hand-over does not take five seconds here.
SETTINGS = {"group.consumer.heartbeat.interval.ms": 200, "group.consumer.assignment.interval.ms": 0}


def test_the_examples_of_the_groups_page(
    examples: Callable[[str], list[Any]], runner: Any, start_broker: Callable[..., Broker]
) -> None:
    page = examples("docs/groups.md")
    assert {example.language for example in page} == {"sh", "python"}
    runner.bootstrap = start_broker(settings=SETTINGS).bootstrap
    for example in page:
        runner.run(example)
