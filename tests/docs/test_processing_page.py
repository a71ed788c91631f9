"""The examples of the page about processing run as they stand, and it names every setting."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidelog import AsyncDeduplicator, Deduplicator
from tidelog.client.processing.pool_types import PoolMetrics, PoolSettings
from tidelog.client.processing.worker_pool import PoolOptions

PAGE = "docs/processing.md"


@pytest.mark.parametrize("number", range(4))
def test_the_examples_of_the_processing_page(examples: Callable[[str], list[Any]], runner: Any, number: int) -> None:
    page = examples(PAGE)
    assert len(page) == 4
    assert page[number].expected
    runner.run(page[number])


def test_every_setting_is_named() -> None:
    text = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    deduplicator = list(inspect.signature(Deduplicator).parameters)[1:]
    assert deduplicator == list(inspect.signature(AsyncDeduplicator).parameters)[1:]
    unnamed = {"poll_timeout_s"}  # how long one poll waits concerns nobody but tests
    for name in {*deduplicator, *PoolOptions.__annotations__, *PoolMetrics.__slots__} - unnamed:
        assert f"`{name}" in text or f"{name}=" in text, name


def test_the_typed_options_are_the_settings() -> None:
    assert list(PoolOptions.__annotations__) == list(PoolSettings.__slots__)
