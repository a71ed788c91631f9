"""The examples of the page about replays run as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.testing import Broker

SPARK_DEADLINE_S = 600.0


@pytest.mark.xdist_group("spark")
def test_the_examples_of_the_replay_page(examples: Callable[[str], list[Any]], runner: Any) -> None:
    with Broker() as broker:
        runner.bootstrap = broker.bootstrap
        runner.deadline_s = SPARK_DEADLINE_S
        for example in examples("docs/replay.md"):
            runner.run(example)
