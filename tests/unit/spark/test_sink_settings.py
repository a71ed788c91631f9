"""What a write is told to do, and whose version it is."""

from __future__ import annotations

import pytest

from tidelog.client.errors import ConfigError
from tidelog.spark.options import OptionError, Use
from tidelog.spark.sink_settings import SinkSettings, read_settings

BROKERS = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "t"}
IN_QUERY = {
    "sql.streaming.queryId": "query",
    "streaming.sql.batchId": "7",
    "spark.jobGroup.id": "run 1",
    "spark.app.id": "app",
}


def _stream(**given: str) -> SinkSettings:
    return read_settings({**BROKERS, **given}, Use.STREAM_WRITE, "")


def _batch(write_id: str = "aa" * 6, **given: str) -> SinkSettings:
    return read_settings({**BROKERS, **given}, Use.BATCH_WRITE, write_id)


def test_a_stream_is_exactly_once_under_its_query_and_batch() -> None:
    identity = _stream().identity(IN_QUERY)
    assert identity is not None
    assert (identity.base, identity.version) == ("tidelog-spark-query", 7)
    assert not identity.is_implied


def test_a_restarted_query_is_another_run() -> None:
    runs = [_stream().identity({**IN_QUERY, "spark.jobGroup.id": name}) for name in ("run 1", "run 2", "run 1")]
    first, second, third = [identity.run for identity in runs if identity is not None]
    assert first == third != second


def test_the_same_query_in_another_application_is_another_run() -> None:
    first, second = _stream().identity(IN_QUERY), _stream().identity({**IN_QUERY, "spark.app.id": "other"})
    assert first is not None
    assert second is not None
    assert (first.base, first.version) == (second.base, second.version)
    assert first.run != second.run


def test_a_batch_write_is_at_least_once_unless_it_has_a_name() -> None:
    assert _batch().identity({}) is None
    named = _batch(txnAppId="loads", txnVersion="3").identity({})
    assert named is not None
    assert (named.base, named.version) == ("tidelog-spark-loads", 3)


def test_inside_foreach_batch_the_query_and_its_batch_are_the_name() -> None:
    identity = _batch().identity(IN_QUERY)
    assert identity is not None
    assert (identity.base, identity.version, identity.is_implied) == ("tidelog-spark-query", 7, True)


def test_inside_foreach_batch_writes_can_be_told_apart() -> None:
    identity = _batch(txnAppId="second").identity(IN_QUERY)
    assert identity is not None
    assert (identity.base, identity.version, identity.is_implied) == ("tidelog-spark-second", 7, False)


def test_an_exactly_once_batch_without_a_name_has_a_name_of_its_own() -> None:
    first, second = [_batch(write_id, delivery="exactly-once").identity({}) for write_id in ("aa" * 6, "bb" * 6)]
    assert first is not None
    assert second is not None
    assert first.version is None
    assert first.base != second.base


def test_at_least_once_has_no_name_anywhere() -> None:
    assert _stream(delivery="at-least-once").identity(IN_QUERY) is None
    assert _batch(delivery="at-least-once").identity(IN_QUERY) is None


def test_a_name_needs_a_version_outside_of_a_query() -> None:
    with pytest.raises(OptionError, match="txnVersion"):
        _batch(txnAppId="loads").identity({})
    with pytest.raises(OptionError, match="txnAppId"):
        _batch(txnVersion="3")
    with pytest.raises(OptionError, match="at-least-once"):
        _batch(txnAppId="loads", txnVersion="3", delivery="at-least-once")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"delivery": "twice"}, "exactly-once or at-least-once"),
        ({"kafka.transactional.id": "mine"}, "transactionalIdPrefix"),
        ({"kafka.partitioner.class": "round_robin"}, "column partition"),
        ({"kafka.value.serializer": "x"}, "to_json"),
        ({"topik": "t"}, "did you mean 'topic'"),
    ],
)
def test_options_that_cant_be_right_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        _stream(**given)


def test_client_settings_that_cant_be_right_are_refused_on_the_driver() -> None:
    with pytest.raises(ConfigError, match="acks"):
        _stream(**{"kafka.acks": "1"})
    with pytest.raises(ConfigError, match="linger"):
        _stream(**{"kafka.linger.m": "1"})


def test_transactions_may_be_open_for_as_long_as_brokers_usually_allow() -> None:
    assert _stream().producer_settings(transactional=True)["transaction.timeout.ms"] == 900_000
    shorter = _stream(**{"kafka.transaction.timeout.ms": "5000"})
    assert shorter.producer_settings(transactional=True)["transaction.timeout.ms"] == "5000"
    assert "transactional.id" not in shorter.producer_settings(transactional=False)
