"""The pytest fixture `tidelog_broker`, found by pytest once tidelog is installed.

What always holds: importing this costs next to nothing, because every pytest run on the machine does it; the broker is
imported when a test asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker


@pytest.fixture
def tidelog_broker() -> Iterator[Broker]:
    """A real broker on a free port with a temporary directory, gone after the test."""
    from tidelog.testing.broker import Broker

    with Broker() as broker:
        yield broker
