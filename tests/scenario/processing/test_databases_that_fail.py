"""Servers that go away: calls wait for them within their time-out, and say so when it is over."""

from __future__ import annotations

import signal
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from tidelog import Deduplicator
from tidelog.client.processing.errors import ClaimStoreError

pytestmark = pytest.mark.xdist_group("processing")


@pytest.fixture(scope="module", params=["redis", "postgres"])
def own_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server like those that all tests share, which these tests may stop."""
    shared = request.getfixturevalue(f"{request.param}_server")
    with tempfile.TemporaryDirectory(prefix="tidelog-server-") as directory:
        server = type(shared)(Path(directory))
        if request.param == "postgres":
            server.create()
        yield server


@pytest.fixture
def server(own_server: Any) -> Iterator[Any]:
    """The same, running."""
    own_server.start()
    yield own_server
    own_server.stop()


@pytest.fixture
def name() -> str:
    """A name under which nothing is marked yet."""
    return uuid.uuid4().hex


def test_a_restarted_server_is_found_again(server: Any, name: str) -> None:
    """Marks outlive a server that is killed, and connections that broke are replaced without a word."""
    with Deduplicator(server.url, name=name) as dedup:
        with dedup.once("before"):
            pass
        server.stop(signal.SIGQUIT if hasattr(server, "create") else signal.SIGKILL)
        server.start()
        with dedup.once("before") as again:
            assert not again
        with dedup.once("after") as first:
            assert first


def test_a_server_that_comes_back_in_time_is_waited_for(server: Any, name: str) -> None:
    def claim(dedup: Deduplicator) -> bool:
        with dedup.once("k") as first:
            return bool(first)

    with Deduplicator(server.url, name=name, timeout_s=30) as dedup, ThreadPoolExecutor(1) as pool:
        server.stop()
        claimed = pool.submit(claim, dedup)
        server.start()
        assert claimed.result(30)


def test_a_server_that_stays_away_is_told(server: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The error of the handler is not hidden by that of the database."""

    def lose_the_server(dedup: Deduplicator) -> None:
        with dedup.once("k"):
            server.stop()
            raise RuntimeError("no ink")

    with Deduplicator(server.url, name=name, timeout_s=0.2) as dedup:
        with pytest.raises(RuntimeError, match="no ink"):
            lose_the_server(dedup)
        assert "expire with their lease of 60.0 s" in caplog.text
        with pytest.raises(ClaimStoreError, match=r"could not be (reached|used)") as raised, dedup.once("k"):
            pytest.fail("the block must not run")
        assert isinstance(raised.value.__cause__, (redis.RedisError, psycopg.Error))


def test_a_mark_that_can_not_be_written_is_raised(server: Any, name: str) -> None:
    def lose_the_server(dedup: Deduplicator) -> None:
        with dedup.once("k"):
            server.stop()

    with Deduplicator(server.url, name=name, timeout_s=0.2) as dedup, pytest.raises(ClaimStoreError):
        lose_the_server(dedup)


def test_a_table_that_is_there_needs_no_right_to_make_one(postgres_database: Any) -> None:
    with Deduplicator(postgres_database.url, name="billing") as dedup, dedup.once("k"):
        pass
    postgres_database.execute("DROP ROLE IF EXISTS reader")
    postgres_database.execute("CREATE ROLE reader LOGIN")
    postgres_database.execute("GRANT USAGE ON SCHEMA public TO reader")
    postgres_database.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON tidelog_dedup TO reader")
    url = postgres_database.url.replace("tidelog@", "reader@")
    with Deduplicator(url, name="billing") as dedup:
        with dedup.once("k") as again:
            assert not again
        with dedup.once("l") as first:
            assert first
    with (
        Deduplicator(url, name="billing", table="another") as dedup,
        pytest.raises(ClaimStoreError, match="permission denied for schema"),
        dedup.once("k"),
    ):
        pytest.fail("the block must not run")
    postgres_database.execute("DROP OWNED BY reader")


def test_a_table_in_a_schema(postgres_database: Any) -> None:
    postgres_database.execute("DROP SCHEMA IF EXISTS marks CASCADE")
    postgres_database.execute("CREATE SCHEMA marks")
    with Deduplicator(postgres_database.url, name="billing", table="marks.seen") as dedup, dedup.once("k"):
        assert postgres_database.execute("SELECT count(*) FROM marks.seen") == [(1,)]


def test_many_make_the_table_at_once(sql_database: Any) -> None:
    def use(number: int) -> bool:
        with Deduplicator(sql_database.url, name="billing") as dedup, dedup.once(str(number)) as first:
            return bool(first)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(8)))


def test_a_client_of_the_users_own(redis_database: Any) -> None:
    """Also one that decodes what it reads; it stays open."""
    client = redis.Redis.from_url(redis_database.url, decode_responses=True)
    for expected in (True, False):
        with Deduplicator(client, name="billing") as dedup, dedup.once("k") as first:
            assert bool(first) is expected
    assert client.ping()
    client.close()
