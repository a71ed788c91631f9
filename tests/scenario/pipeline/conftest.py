"""A broker and a shop at it, for each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plain_shop import Shop
from tidelog.testing import Broker


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Broker() as broker:
        opened = Shop(broker.bootstrap, tmp_path / "state", seed=7)
        try:
            yield opened
        finally:
            opened.close()
            for name in ("totals_v1", "totals_v2"):  # the next test has files of its own
                sys.modules.pop(name, None)
