"""The examples of the storage page run as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_the_examples_of_the_storage_page(examples: Callable[[str], list[Any]], runner: Any) -> None:
    page = examples("docs/storage.md")
    assert page
    for example in page:
        runner.run(example)
