"""What calls about settings take and give: plain rows without behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.protocol.config_values import (
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

__all__ = [
    "AlterOperation",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "ResourceType",
]


class ConfigSynonym(NamedTuple):
    """A place that gives a setting its value when those before it do not."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting; the value of a sensitive one is None."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None
    synonyms: Sequence[ConfigSynonym] = ()

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.source is ConfigSource.DEFAULT_CONFIG
