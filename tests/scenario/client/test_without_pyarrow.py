"""Without pyarrow the broker and the clients work, and the calls that need it say which extra to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.tidelog_only

PROGRAM = """
import asyncio
import sys


class NoPyarrow:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NoPyarrow())

from tidelog import AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from tidelog.errors import MissingExtraError
from tidelog.testing import Broker


def refused(call):
    try:
        call()
    except MissingExtraError as error:
        assert "pip install 'tidelog[arrow]'" in str(error), error
    else:
        raise AssertionError("it was not refused")


async def with_asyncio(bootstrap):
    async with AsyncProducer(bootstrap_servers=bootstrap) as producer:
        try:
            await producer.send_arrow("orders", object())
        except MissingExtraError:
            print("async send_arrow refused")
        await producer.send("orders", b"second")
    async with AsyncConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        try:
            await consumer.poll_arrow(timeout=30)
        except MissingExtraError:
            print("async poll_arrow refused")


with Broker() as broker:
    broker.create_topic("orders")
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        refused(lambda: producer.send_arrow("orders", object()))
        producer.send("orders", b"first").result()
    asyncio.run(with_asyncio(broker.bootstrap))
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        refused(lambda: consumer.poll_arrow(timeout=30))
        read = []
        while len(read) < 2:
            read += consumer.poll(1.0)
        print([record.value for record in read])
"""


def test_only_the_calls_for_arrow_need_pyarrow() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "async send_arrow refused",
        "async poll_arrow refused",
        "[b'first', b'second']",
    ]
