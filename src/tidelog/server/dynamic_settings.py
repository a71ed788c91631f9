"""Settings of a broker that are changed while it runs: handed to the parts that hold a copy of them.

What always holds: a part is told once at the start if its setting was changed at run time before, and then of every
change, on the event loop, in the order of the images. The defaults of topic settings need none of this: logs look them
up in each image (`topic_config`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidelog.broker.topic_config import broker_value
from tidelog.common.settings import Settings
from tidelog.controller.image import ClusterImage


class DynamicSettings:
    """Compares images and tells who is concerned; `apply` has the setting's name and what takes its new value."""

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
