"""The effective values of a topic's settings: its own, else the broker's run-time settings, else its static ones.

What always holds: the order is topic, this broker at run time, all brokers at run time, this broker's startup
configuration, the table's default; every value has the type given in its row. `config_description` shows values and
their sources to clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidelog.common.settings import Setting, Settings, SettingScope, SettingsTable
from tidelog.controller.image import ClusterImage
from tidelog.log.config import LogConfig

_KNOWN_MAX: Final = 1_000
"""How many different sets of settings are remembered: more than people make up, less than what changes pile up."""


def effective_log_config(settings: Settings, table: SettingsTable, image: ClusterImage, topic: str) -> LogConfig:
    """The configuration of this topic's logs on this broker."""
    return LogConfig.from_values(topic_values(settings, table, image, image.topic_configs(topic)))


class LogConfigs:
    """The same, cached: most topics have the same settings or none, and there may be thousands of them."""

    def __init__(self, settings: Settings, table: SettingsTable) -> None:
        self._settings = settings
        self._table = table
        self._brokers: tuple[Mapping[str, str], ...] = ()
        self._known: dict[frozenset[tuple[str, str]], LogConfig] = {}

    def effective(self, image: ClusterImage, topic: str) -> LogConfig:
        brokers = (image.broker_configs(self._settings["node.id"]), image.broker_configs(None))
        if brokers != self._brokers or len(self._known) >= _KNOWN_MAX:
            self._brokers = brokers
            self._known.clear()
        overrides = frozenset(image.topic_configs(topic).items())
        config = self._known.get(overrides)
        if config is None:
            config = self._known[overrides] = effective_log_config(self._settings, self._table, image, topic)
        return config


def topic_values(
    settings: Settings, table: SettingsTable, image: ClusterImage, overrides: Mapping[str, str]
) -> dict[str, Any]:
    """Every topic setting's value for a topic that sets `overrides` itself."""
    return {
        row.name: row.parse(overrides[row.name]) if row.name in overrides else topic_default(settings, image, row)
        for row in table.rows(SettingScope.TOPIC)
    }


def topic_default(settings: Settings, image: ClusterImage, row: Setting) -> Any:
    """The value of a topic setting for topics that do not set it."""
    return row.default if row.broker_name is None else broker_value(settings, image, row.broker_name)


def broker_value(settings: Settings, image: ClusterImage, name: str) -> Any:
    """The current value of a broker setting on this broker, synonyms included."""
    for dynamic in (image.broker_configs(settings["node.id"]), image.broker_configs(None)):
        if name in dynamic:
            return settings.table.get(name, SettingScope.BROKER).parse(dynamic[name])
    return settings.effective(name)
