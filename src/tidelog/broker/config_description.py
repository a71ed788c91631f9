"""Settings as DescribeConfigs and CreateTopics show them: value, source, and the values it overrides.

What always holds: the first synonym is the effective value and gives the source, as Kafka's clients expect (KIP-226);
the value of a sensitive setting is never shown. It reads the image and the settings and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelog.broker.topic_config import broker_value, topic_default
from tidelog.common.light_dataclass import dataclass
from tidelog.common.settings import Setting, Settings, SettingScope, SettingsTable
from tidelog.controller.image import ClusterImage
from tidelog.protocol.config_values import ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value given for a setting, under the name it was given with."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    row: Setting
    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def read_only(self) -> bool:
        return not self.row.dynamic


def describe_topic(
    settings: Settings, table: SettingsTable, image: ClusterImage, overrides: Mapping[str, str]
) -> Iterator[ConfigDescription]:
    """Every setting of a topic that sets `overrides` itself."""
    for row in table.rows(SettingScope.TOPIC):
        synonyms = list(_broker_chain(settings, image, row.broker_name)) if row.broker_name is not None else []
        if row.name in overrides:
            value: str | None = overrides[row.name]
            synonyms.insert(0, ConfigSynonym(row.name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG))
        else:
            value = row.format(topic_default(settings, image, row))
        yield _description(row, value, synonyms)


def describe_group(
    settings: Settings, table: SettingsTable, image: ClusterImage, overrides: Mapping[str, str]
) -> Iterator[ConfigDescription]:
    """Every setting of a group that sets `overrides` itself, as they were set: bounds may have changed since."""
    for row in table.rows(SettingScope.GROUP):
        synonyms = list(_broker_chain(settings, image, row.broker_name)) if row.broker_name is not None else []
        if row.name in overrides:
            synonyms.insert(0, ConfigSynonym(row.name, overrides[row.name], ConfigSource.GROUP_CONFIG))
        yield _description(row, synonyms[0].value if synonyms else row.format(row.default), synonyms)


def describe_broker(settings: Settings, table: SettingsTable, image: ClusterImage) -> Iterator[ConfigDescription]:
    """Every setting of this broker."""
    for row in table.rows(SettingScope.BROKER):
        chain = list(_broker_chain(settings, image, row.name))
        yield _description(row, row.format(broker_value(settings, image, row.name)), chain)


def describe_broker_defaults(
    settings: Settings, table: SettingsTable, image: ClusterImage
) -> Iterator[ConfigDescription]:
    """Only what was set for all brokers at run time, as in Kafka."""
    for row in table.rows(SettingScope.BROKER):
        chain = [
            synonym
            for synonym in _broker_chain(settings, image, row.name)
            if synonym.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        ]
        if chain:
            yield _description(row, chain[0].value, chain)


def _description(row: Setting, value: str | None, synonyms: list[ConfigSynonym]) -> ConfigDescription:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    if row.sensitive:
        value = None
        synonyms = [ConfigSynonym(synonym.name, None, synonym.source) for synonym in synonyms]
    return ConfigDescription(row, value, source, tuple(synonyms))


def _broker_chain(settings: Settings, image: ClusterImage, name: str) -> Iterator[ConfigSynonym]:
    """All values given for a broker setting under any of its names, the effective one first."""
    rows = [settings.table.get(name, SettingScope.BROKER)]
    rows += [settings.table.get(synonym, SettingScope.BROKER) for synonym in rows[0].synonyms]
    for dynamic, source in (
        (image.broker_configs(settings["node.id"]), ConfigSource.DYNAMIC_BROKER_CONFIG),
        (image.broker_configs(None), ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    ):
        for row in rows:
            if row.name in dynamic:
                yield ConfigSynonym(row.name, dynamic[row.name], source)
    for row in rows:
        if settings.is_set(row.name):
            yield ConfigSynonym(row.name, row.format(settings[row.name]), ConfigSource.STATIC_BROKER_CONFIG)
    for row in rows:
        if row.default is not None:
            yield ConfigSynonym(row.name, row.format(row.default), ConfigSource.DEFAULT_CONFIG)
