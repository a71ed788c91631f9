"""Options of the Spark format: names in any case, values with units, mistakes told with what would be right."""

from __future__ import annotations

import pytest

from tidelog.spark.client_settings import for_driver, for_tasks, group_id, isolation_level
from tidelog.spark.options import OPTIONS, OptionError, Use, option_of, read_options

BROKERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def test_names_are_known_in_any_case() -> None:
    options = read_options({**BROKERS, "STARTINGoffsets": "earliest", "maxoffsetspertrigger": " 7 "}, Use.STREAM_READ)
    assert options.get("startingOffsets") == "earliest"
    assert options.get("maxOffsetsPerTrigger") == 7
    assert options.is_given("MaxOffsetsPerTrigger")


def test_defaults_are_parsed_like_what_is_given() -> None:
    options = read_options(BROKERS, Use.STREAM_READ)
    assert options.get("failOnDataLoss") is True
    assert options.get("maxTriggerDelay") == 900_000
    assert options.get("minPartitions") is None
    assert not options.is_given("failOnDataLoss")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("maxTriggerDelay", "90", 90),
        ("maxTriggerDelay", "2s", 2000),
        ("maxTriggerDelay", "3 min", 180_000),
        ("maxBytesPerTrigger", "64m", 64 * 2**20),
        ("maxBytesPerTrigger", "100", 100),
        ("failOnDataLoss", "FALSE", False),
        ("startingOffsetsByTimestampStrategy", "LATEST", "latest"),
    ],
)
def test_values_with_units(name: str, text: str, value: object) -> None:
    assert read_options({**BROKERS, name: text}, Use.STREAM_READ).get(name) == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("maxOffsetsPerTrigger", "many", "integer"),
        ("maxOffsetsPerTrigger", "0", "1 or more"),
        ("failOnDataLoss", "perhaps", "true or false"),
        ("maxTriggerDelay", "3 parsecs", "as 30s"),
        ("startingOffsetsByTimestampStrategy", "earliest", "error or latest"),
    ],
)
def test_a_bad_value_is_told_with_what_would_be_right(name: str, text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        read_options({**BROKERS, name: text}, Use.STREAM_READ)
    assert name in str(raised.value)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'startingOffsets'"):
        read_options({**BROKERS, "startOffsets": "earliest"}, Use.BATCH_READ)
    with pytest.raises(OptionError, match="the other options are: assign,"):
        read_options({**BROKERS, "zzzzzz": "1"}, Use.BATCH_READ)


def test_options_of_spark_itself_are_passed_over() -> None:
    options = read_options({**BROKERS, "path": "x", "checkpointLocation": "y", "queryName": "z"}, Use.STREAM_READ)
    assert not options.values


def test_a_stream_has_no_end() -> None:
    for name, text in (("endingOffsets", "latest"), ("endingTimestamp", "5"), ("endingOffsetsByTimestamp", "{}")):
        with pytest.raises(OptionError, match="has no end"):
            read_options({**BROKERS, name: text}, Use.STREAM_READ)


def test_limits_of_streams_do_nothing_in_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    options = read_options({**BROKERS, "maxOffsetsPerTrigger": "5"}, Use.BATCH_READ)
    assert not options.values
    assert "maxOffsetsPerTrigger has no effect in a batch read" in caplog.text


def test_brokers_must_be_named() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        read_options({"subscribe": "a"}, Use.BATCH_READ)


@pytest.mark.parametrize(
    "name", ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"]
)
def test_settings_that_the_source_decides_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="is controlled by the source"):
        read_options({**BROKERS, f"kafka.{name}": "x"}, Use.STREAM_READ)


def test_client_settings_go_to_tasks_and_driver() -> None:
    options = read_options(
        {**BROKERS, "kafka.fetch.max.bytes": "1000", "kafka.client.id": "mine", "kafka.group.id": "lag"},
        Use.STREAM_READ,
    )
    tasks, driver = for_tasks(options), for_driver(options)
    assert tasks["fetch.max.bytes"] == "1000"
    assert tasks["isolation.level"] == "read_committed"
    assert "group.id" not in tasks
    assert driver == {"bootstrap.servers": "127.0.0.1:9092", "client.id": "mine"}
    assert group_id(options) == "lag"


def test_reading_uncommitted_is_a_choice() -> None:
    options = read_options({**BROKERS, "kafka.isolation.level": "read_uncommitted"}, Use.BATCH_READ)
    assert isolation_level(options) == "read_uncommitted"
    assert for_tasks(options)["isolation.level"] == "read_uncommitted"
    assert isolation_level(read_options(BROKERS, Use.BATCH_READ)) == "read_committed"


@pytest.mark.parametrize(("name", "text"), [("kafka.fetch.max.byte", "5"), ("kafka.isolation.level", "half")])
def test_a_wrong_client_setting_is_told_when_the_read_is_planned(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=name.removeprefix("kafka.")):
        for_tasks(read_options({**BROKERS, name: text}, Use.BATCH_READ))


def test_one_option_can_be_read_before_the_use_is_known() -> None:
    assert option_of({"INCLUDEHEADERS": "true"}, "includeHeaders") is True
    assert option_of({}, "includeHeaders") is False


def test_every_default_can_be_parsed() -> None:
    for row in OPTIONS.values():
        if row.default is not None:
            row.parse(row.default)
