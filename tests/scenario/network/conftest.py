"""One broker for all tests of the network that can share it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog.testing.broker import Broker


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker
