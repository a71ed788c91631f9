"""The examples for people who test with a broker run as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("number", range(7))
def test_examples_of_the_testing_page(number: int, examples: Callable[[str], list[Any]], runner: Any) -> None:
    page = examples("docs/testing.md")
    assert len(page) == 7
    runner.run(page[number])
