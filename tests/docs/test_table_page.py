"""The example of the page about tables runs as it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_the_example_of_the_table_page(examples: Callable[[str], list[Any]], runner: Any) -> None:
    (example,) = examples("docs/table.md")
    assert example.expected
    runner.run(example)
