"""Passes broker settings that change at run time on to the parts that keep a copy of them.

What always holds: a part is told at startup if its setting was changed at run time earlier, and then of every change,
on the event loop, in the order of the images. Defaults of topic settings don't need this: logs look them up in each
image (`topic_config`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidelog.broker.topic_config import broker_value
from tidelog.common.settings import Settings
from tidelog.controller.image import ClusterImage


class DynamicSettings:
    """Compares images; `apply` maps each setting's name to the function that is called with its new value."""

    def __init__(self, settings: Settings, apply: Mapping[str, Callable[[Any], None]]) -> None:
        self._settings = settings
        self._apply = apply
        self._values = {name: settings[name] for name in apply}

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.configs is new.configs:
            return
        for name, apply in self._apply.items():
            value = broker_value(self._settings, new, name)
            if value != self._values[name]:
                self._values[name] = value
                apply(value)
