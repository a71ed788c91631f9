"""Settings of a broker that are changed while it runs take effect at once, and again after a restart."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from tidelog.protocol.messages import k44_incremental_alter_configs as k44
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from tidelog.server.server import BrokerServer
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient

BROKER = 4


@pytest.fixture
def broker() -> Iterator[Broker]:
    running = Broker().start()
    try:
        yield running
    finally:
        running.close()


def change(client: RawClient, **settings: object) -> None:
    configs = [
        k44.AlterableConfig(name=name.replace("_", "."), config_operation=0, value=str(value))
        for name, value in settings.items()
    ]
    resource = k44.AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=configs)
    request = k44.IncrementalAlterConfigsRequest(resources=[resource])
    (row,) = client.ask(k44.INCREMENTAL_ALTER_CONFIGS, request, k44.IncrementalAlterConfigsResponse, 1).responses
    assert row.error_code == 0, row.error_message


def describe(client: RawClient, name: str) -> DescribeConfigsResourceResult:
    resource = DescribeConfigsResource(resource_type=BROKER, resource_name="1", configuration_keys=[name])
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (row,) = client.ask(DESCRIBE_CONFIGS, request, DescribeConfigsResponse, 4).results
    (config,) = row.configs
    return config


def serves(client: RawClient) -> bool:
    return len(client.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1).brokers) == 1


def test_limits_of_connections(broker: Broker) -> None:
    with RawClient(broker.port) as admin:
        change(admin, max_connections_per_ip=1)
        with RawClient(broker.port) as refused:
            assert refused.was_closed()
        change(admin, max_connections_per_ip=10, max_connections=1)
        with RawClient(broker.port) as waiting:
            waiting.send(METADATA, MetadataRequest(topics=[]), 1)
            assert serves(admin)
            assert not select.select([waiting.sock], [], [], 0)[0]
            change(admin, max_connections=2)
            assert waiting.receive(METADATA, MetadataResponse, 1)[1].brokers
        config = describe(admin, "max.connections")
        assert (config.value, config.read_only) == ("2", False)
        assert [synonym.value for synonym in config.synonyms] == ["2", str(2**31 - 1)]


async def _values(server: BrokerServer) -> tuple[int, int, bool]:
    logs, transactions = server.services.logs, server.services.replicas.transactions
    return logs.producer_expiration_ms, logs.recovery_threads, transactions.is_enabled


def test_what_logs_and_transactions_go_by(broker: Broker) -> None:
    assert broker.call(_values) == (86_400_000, 2, True)
    with RawClient(broker.port) as admin:
        change(
            admin,
            producer_id_expiration_ms=5_000,
            num_recovery_threads_per_data_dir=3,
            transaction_partition_verification_enable="false",
        )
    # Threads of recovery are of use at the next start only.
    assert broker.call(_values) == (5_000, 2, False)
    broker.stop()
    broker.start()
    assert broker.call(_values) == (5_000, 3, False)
