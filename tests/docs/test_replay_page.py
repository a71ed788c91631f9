"""The examples of the page about replays run as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.testing import Broker


@pytest.mark.xdist_group("spark")
def test_the_examples_of_the_replay_page(examples: Callable[[str], list[Any]], runner: Any) -> None:
    with Broker() as broker:
        runner.bootstrap = broker.bootstrap
        for example in examples("docs/replay.md"):
            runner.run(example)
