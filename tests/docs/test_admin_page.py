"""The examples of the page about admin calls run as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker


def test_the_examples_of_the_admin_page(broker: Broker, examples: Callable[[str], list[Any]], runner: Any) -> None:
    runner.bootstrap = broker.bootstrap
    found = examples("docs/admin.md")
    assert len(found) == 2
    for example in found:
        assert example.expected
        runner.run(example)
