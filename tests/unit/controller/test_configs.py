"""Changes of settings: what each operation gives, and what is refused with which code."""

from __future__ import annotations

import uuid

import pytest

from tidelog.common.settings import Settings
from tidelog.controller import configs
from tidelog.controller.image import ClusterImage, PartitionState, TopicImage
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource, ResourceType

TOPIC = ConfigResource(ResourceType.TOPIC, "a")
BROKERS = ConfigResource(ResourceType.BROKER, "")
BROKER = ConfigResource(ResourceType.BROKER, "0")
SET, DELETE, APPEND, SUBTRACT = AlterOperation


@pytest.fixture
def image(image: ClusterImage) -> ClusterImage:
    topic = TopicImage("a", uuid.UUID(int=5), (PartitionState((0,), (0,), 0),))
    return image.with_topics([topic]).with_configs({TOPIC: {"retention.ms": "5"}})


def test_operations_on_a_topic(image: ClusterImage, settings: Settings) -> None:
    def after(*changes: ConfigChange) -> dict[str, str]:
        return configs.alter_configs(TOPIC, changes, image, settings)

    assert after(ConfigChange("segment.bytes", SET, "10")) == {"retention.ms": "5", "segment.bytes": "10"}
    assert after(ConfigChange("retention.ms", DELETE)) == {}
    assert after(ConfigChange("cleanup.policy", DELETE)) == {"retention.ms": "5"}
    assert after(ConfigChange("cleanup.policy", APPEND, "compact"))["cleanup.policy"] == "delete,compact"
    assert after(ConfigChange("cleanup.policy", APPEND, "delete"))["cleanup.policy"] == "delete"
    assert after(ConfigChange("cleanup.policy", SUBTRACT, "delete"))["cleanup.policy"] == ""


def test_lists_start_from_what_the_topic_inherits(image: ClusterImage, settings: Settings) -> None:
    appended = [ConfigChange("cleanup.policy", APPEND, "x")]
    settings.set("log.cleanup.policy", "compact", "file")
    assert configs.alter_configs(TOPIC, appended, image, settings)["cleanup.policy"] == "compact,x"
    image = image.with_configs({BROKERS: {"log.cleanup.policy": "delete,compact"}})
    assert configs.alter_configs(TOPIC, appended, image, settings)["cleanup.policy"] == "delete,compact,x"
    image = image.with_configs({TOPIC: {"cleanup.policy": "y"}})
    assert configs.alter_configs(TOPIC, appended, image, settings)["cleanup.policy"] == "y,x"


def test_replacing_drops_what_is_not_named(image: ClusterImage, settings: Settings) -> None:
    assert configs.replace_configs(TOPIC, {"segment.bytes": "7"}, image, settings) == {"segment.bytes": "7"}


@pytest.mark.parametrize("resource", [BROKER, BROKERS])
def test_a_brokers_dynamic_settings_can_be_changed(
    resource: ConfigResource, image: ClusterImage, settings: Settings
) -> None:
    changed = configs.alter_configs(resource, [ConfigChange("log.retention.ms", SET, "9")], image, settings)
    assert changed == {"log.retention.ms": "9"}


@pytest.mark.parametrize(
    ("resource", "change", "code"),
    [
        (ConfigResource(ResourceType.TOPIC, "b"), ("retention.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ConfigResource(ResourceType.BROKER, "9"), ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(ResourceType.BROKER, "x"), ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, ("socket.request.max.bytes", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, ("retention.ms", SET, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, ("retention.m", SET, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, ("retention.m", DELETE, None), ErrorCode.INVALID_CONFIG),
        (TOPIC, ("segment.bytes", SET, "-1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, ("segment.bytes", SET, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, ("segment.bytes", APPEND, "1"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_refusals(
    resource: ConfigResource,
    change: tuple[str, AlterOperation, str | None],
    code: ErrorCode,
    image: ClusterImage,
    settings: Settings,
) -> None:
    with pytest.raises(KafkaError) as caught:
        configs.alter_configs(resource, [ConfigChange(*change)], image, settings)
    assert caught.value.code is code


def test_a_setting_is_changed_once_a_request(image: ClusterImage, settings: Settings) -> None:
    twice = [ConfigChange("retention.ms", SET, "1"), ConfigChange("retention.ms", DELETE)]
    with pytest.raises(KafkaError) as caught:
        configs.alter_configs(TOPIC, twice, image, settings)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_the_least_compaction_lag_stays_within_the_largest(image: ClusterImage, settings: Settings) -> None:
    """Also where the topic sets only one of them and inherits the other; other changes are not in its way then."""
    accepted = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"}
    assert configs.check_topic_configs(accepted, image, settings) == accepted
    with pytest.raises(KafkaError) as caught:
        configs.check_topic_configs(accepted | {"max.compaction.lag.ms": "9"}, image, settings)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert caught.value.message == "min.compaction.lag.ms is 10 and may not be above max.compaction.lag.ms, which is 9."
    lowered = [ConfigChange("max.compaction.lag.ms", SET, "9")]
    assert configs.alter_configs(TOPIC, lowered, image, settings)["max.compaction.lag.ms"] == "9"
    settings.set("log.cleaner.min.compaction.lag.ms", "9", "file")
    assert configs.alter_configs(TOPIC, lowered, image, settings)["max.compaction.lag.ms"] == "9"
    image = image.with_configs({BROKERS: {"log.cleaner.min.compaction.lag.ms": "10"}})
    with pytest.raises(KafkaError):
        configs.alter_configs(TOPIC, lowered, image, settings)
    with pytest.raises(KafkaError):
        configs.replace_configs(TOPIC, {"max.compaction.lag.ms": "9"}, image, settings)
    assert "segment.bytes" in configs.alter_configs(TOPIC, [ConfigChange("segment.bytes", SET, "5")], image, settings)
