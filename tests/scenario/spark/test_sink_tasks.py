"""The sink's tasks and its driver against a real broker, called as Spark calls them; no session is started."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from played_spark import sink_settings
from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.client.errors import ClientError, ConnectionLostError
from tidelog.spark import sink, sink_driver, sink_tasks
from tidelog.spark.options import Use
from tidelog.spark.sink_settings import SinkSettings, read_settings
from tidelog.spark.sink_tasks import write_rows
from tidelog.testing import Broker

pytestmark = pytest.mark.tidelog_only
TOPIC = "rows"
RUN = {"spark.app.id": "app", "spark.jobGroup.id": "job"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        with Admin(bootstrap_servers=started.bootstrap) as admin:
            small = NewTopic(TOPIC, 1, configs={"max.message.bytes": "1000"})
            admin.create_topics([small, NewTopic("wide", 1)]).raise_for_errors()
        yield started
        # Workers and drivers keep their clients until the process ends; this process has other tests to run.
        tasks = sink_tasks._this_process()
        for key in tuple(tasks.producers):
            sink_tasks._discard(tasks, key)
        for client in sink._clients.values():
            client.thread.run(client.driver._cluster.close())
            client.thread.close()
        sink._clients.clear()


def at_least_once(broker: Broker) -> SinkSettings:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": TOPIC, "delivery": "at-least-once"}
    return read_settings(given, Use.STREAM_WRITE, "")


def rows(*values: bytes) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"value": pa.array(values, pa.binary())})


def refused_then_stored() -> Iterator[pa.RecordBatch]:
    """Rows whose refusal is known before the next ones are asked for."""
    yield from rows(b"x" * 2000)
    [producer] = sink_tasks._this_process().producers.values()
    assert isinstance(producer, Producer)
    producer.flush()
    yield from rows(b"small")


def test_a_task_fails_when_the_broker_refuses_its_rows(broker: Broker) -> None:
    """At least once: a report that counts refused rows would let Spark go on without them."""
    assert write_rows(at_least_once(broker), {}, 0, rows(b"small")).rows == 1
    with pytest.raises(ClientError):
        write_rows(at_least_once(broker), {}, 0, rows(b"x" * 2000))
    # Whether the refusal arrives while rows are still being sent, or with the last ones.
    with pytest.raises(ClientError):
        write_rows(at_least_once(broker), {}, 0, (batch for _ in range(50) for batch in rows(b"x" * 2000)))
    with pytest.raises(ClientError):
        write_rows(at_least_once(broker), {}, 0, refused_then_stored())
    assert write_rows(at_least_once(broker), {}, 0, rows(b"small again")).rows == 1


def _batch(query: str, number: int) -> dict[str, str]:
    return {**RUN, "sql.streaming.queryId": query, "streaming.sql.batchId": str(number)}


def _open_transactions(broker: Broker, query: str) -> list[str]:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        listed = admin.list_transactions(states=["Ongoing"])
        return [each.transactional_id for each in listed if query in each.transactional_id]


def test_open_transactions_that_can_not_be_listed_are_looked_for_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit does not wait for a broker that can't tell, and the next commit aborts what this one could not find."""
    settings, query = sink_settings(broker.bootstrap, "wide"), "query-orphans"
    # An attempt of an earlier run whose worker died: its transaction stays open.
    write_rows(settings, {**_batch(query, 0), "spark.app.id": "earlier"}, 0, rows(b"orphan"))
    assert len(_open_transactions(broker, query)) == 1
    driver: Any = sink._driver(settings)

    async def fails(*_: Any, **__: Any) -> Any:
        raise ConnectionLostError("the broker is away")

    monkeypatch.setattr(sink_driver, "_ORPHANS_WAIT_S", 0.2)
    with monkeypatch.context() as away, caplog.at_level(logging.WARNING, "tidelog"):
        away.setattr(sink_driver, "list_transactions", fails)
        report = write_rows(settings, _batch(query, 0), 0, rows(b"first"))
        sink._run(settings, driver.commit(settings, [report]))
    assert "the next batch will try again" in caplog.text
    assert len(_open_transactions(broker, query)) == 1
    report = write_rows(settings, _batch(query, 1), 0, rows(b"second"))
    sink._run(settings, driver.commit(settings, [report]))
    assert _open_transactions(broker, query) == []
    partition = TopicPartition("wide", 0)
    with Consumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning([partition])
        seen: list[bytes] = []
        while b"second" not in seen:
            seen += [record.value for record in consumer.poll(timeout=10)]
    assert seen == [b"first", b"second"]
