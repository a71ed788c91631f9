"""Levels of loggers, seen and changed by clients (KIP-412)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tidelog.broker.log_levels import logger_levels
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages import k33_alter_configs as k33
from tidelog.protocol.messages import k44_incremental_alter_configs as k44
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

if TYPE_CHECKING:
    from tests.unit.broker.admin.conftest import AdminBroker

LOGGERS = 8
SET, DELETE, APPEND = 0, 1, 2
NAME = "tidelog.broker.forwarding"
ABOVE = "tidelog.broker"

Row = tuple[int, str, int]


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """The levels are the test process's own, so they are put back."""
    names = ("", "tidelog", ABOVE, NAME)
    before = {name: logging.getLogger(name).level for name in names}
    logging.getLogger("").setLevel(logging.WARNING)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def loggers_of(name: str, *changes: tuple[str, int, str | None]) -> k44.AlterConfigsResource:
    configs = [k44.AlterableConfig(name=name, config_operation=op, value=value) for name, op, value in changes]
    return k44.AlterConfigsResource(resource_type=LOGGERS, resource_name=name, configs=configs)


def alter(broker: AdminBroker, *resources: k44.AlterConfigsResource, validate_only: bool = False) -> list[Row]:
    request = k44.IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    response = broker.call(k44.INCREMENTAL_ALTER_CONFIGS, request, k44.IncrementalAlterConfigsResponse, 1)
    return [(row.resource_type, row.resource_name, row.error_code) for row in response.responses]


def described(broker: AdminBroker, *names: str) -> dict[str, str | None]:
    resource = DescribeConfigsResource(resource_type=LOGGERS, resource_name="1", configuration_keys=list(names) or None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    (result,) = broker.call(DESCRIBE_CONFIGS, request, DescribeConfigsResponse, 4).results
    assert result.error_code == 0
    assert {(row.config_source, row.read_only, row.is_sensitive) for row in result.configs} == {(6, False, False)}
    return {row.name: row.value for row in result.configs}


def test_our_loggers_are_described(broker: AdminBroker) -> None:
    logging.getLogger("somebody.else")
    rows = described(broker)
    assert rows == dict(logger_levels())
    assert {"root", "tidelog", ABOVE, NAME} <= rows.keys()
    assert all(name == "root" or name.split(".")[0] == "tidelog" for name in rows)
    assert described(broker, NAME, "root") == {NAME: "WARN", "root": "WARN"}


@pytest.mark.parametrize(
    ("name", "level"), [("TRACE", 5), ("DEBUG", 10), ("INFO", 20), ("WARN", 30), ("ERROR", 40), ("FATAL", 50)]
)
def test_levels_have_kafka_s_names(broker: AdminBroker, name: str, level: int) -> None:
    assert alter(broker, loggers_of("1", (NAME, SET, name))) == [(LOGGERS, "1", 0)]
    assert logging.getLogger(NAME).level == level
    assert described(broker, NAME) == {NAME: name}


def test_a_logger_without_a_level_has_that_of_the_one_above(broker: AdminBroker) -> None:
    assert alter(broker, loggers_of("1", (ABOVE, SET, "DEBUG"), (NAME, SET, "ERROR")))[0][2] == 0
    assert described(broker, ABOVE, NAME, "root") == {ABOVE: "DEBUG", NAME: "ERROR", "root": "WARN"}
    assert logging.getLogger(NAME).isEnabledFor(logging.WARNING) is False
    assert alter(broker, loggers_of("1", (NAME, DELETE, None)))[0][2] == 0
    assert described(broker, NAME) == {NAME: "DEBUG"}
    assert alter(broker, loggers_of("1", ("root", SET, "INFO"), (ABOVE, DELETE, None)))[0][2] == 0
    assert described(broker, NAME, "root") == {NAME: "INFO", "root": "INFO"}


def test_one_bad_change_or_validation_only_changes_nothing(broker: AdminBroker) -> None:
    changes = ((NAME, SET, "DEBUG"), ("tidelog", SET, "LOUD"))
    assert alter(broker, loggers_of("1", *changes)) == [(LOGGERS, "1", ErrorCode.INVALID_CONFIG)]
    assert alter(broker, loggers_of("1", changes[0]), validate_only=True) == [(LOGGERS, "1", 0)]
    twice = loggers_of("1", changes[0], (NAME, SET, "INFO"))
    assert alter(broker, twice) == [(LOGGERS, "1", ErrorCode.INVALID_REQUEST)]
    again = [loggers_of("1", changes[0])] * 2
    assert alter(broker, *again) == [(LOGGERS, "1", ErrorCode.INVALID_REQUEST)] * 2
    assert described(broker, NAME) == {NAME: "WARN"}


def test_rows_come_in_the_order_of_the_request(broker: AdminBroker) -> None:
    all_brokers = k44.AlterConfigsResource(
        resource_type=4,
        resource_name="",
        configs=[k44.AlterableConfig(name="log.retention.ms", config_operation=SET, value="5")],
    )
    rows = alter(broker, loggers_of("2"), all_brokers, loggers_of("1", (NAME, SET, "INFO")))
    assert rows == [(LOGGERS, "2", ErrorCode.INVALID_REQUEST), (4, "", 0), (LOGGERS, "1", 0)]
    assert broker.image.broker_configs(None) == {"log.retention.ms": "5"}


def test_alter_configs_is_not_for_loggers(broker: AdminBroker) -> None:
    configs = [k33.AlterableConfig(name=NAME, value="DEBUG")]
    request = k33.AlterConfigsRequest(
        resources=[k33.AlterConfigsResource(resource_type=LOGGERS, resource_name="1", configs=configs)]
    )
    (row,) = broker.call(k33.ALTER_CONFIGS, request, k33.AlterConfigsResponse, 2).responses
    assert row.error_code == ErrorCode.INVALID_REQUEST
    assert described(broker, NAME) == {NAME: "WARN"}
