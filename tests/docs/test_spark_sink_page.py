"""The page about writing from Spark: its examples run as one program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tidelog.testing import Broker


@pytest.mark.xdist_group("spark")
def test_the_examples_of_the_spark_sink_page(examples: Callable[[str], list[Any]], runner: Any, broker: Broker) -> None:
    runner.bootstrap = broker.bootstrap
    runner.deadline_s = 600  # Spark is slow to start on a busy machine
    parts = examples("docs/spark-sink.md")
    assert {part.language for part in parts} == {"python"}
    runner.run(replace(parts[0], code="\n".join(part.code for part in parts), expected=""))
