"""What tests of pipelines need beside a session and a cluster: a place, and databases to write to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from database_servers import running_postgres
from pipeline_place import Place
from tidelog import ConsumerRecord
from tidelog.bench.brokers import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def place(spark: SparkSession, cluster: BrokerProcess, tmp_path: Path) -> Place:
    return Place(cluster.bootstrap, tmp_path / "state", spark)


@pytest.fixture
def headers_of() -> Callable[[ConsumerRecord], dict[str, str]]:
    return lambda record: {name: (value or b"").decode() for name, value in record.headers}


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL of the tests' own."""
    with running_postgres() as server:
        yield server.url
