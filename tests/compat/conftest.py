"""Fixtures of the compatibility tests: a broker with its defaults, and the Java clients that `make compat` built."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def java_jars() -> Path:
    """Where `make compat` put the Java clients: lib-VERSION directories below this one."""
    place = os.environ.get("COMPAT_JAVA_LIBS")
    if not place:
        pytest.fail("COMPAT_JAVA_LIBS is not set: run these tests with `make compat`, which builds the Java driver")
    return Path(place)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session that knows Spark's own `kafka` format, which Maven brings, beside ours."""
    from tidelog.bench.spark_peer import session_with_both

    with session_with_both(tmp_path_factory.mktemp("spark"), {"spark.driver.memory": "1g"}) as session:
        yield session
