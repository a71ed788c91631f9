"""The settings of the clients that the driver and the tasks make, from the options that begin with `kafka.`.

What always holds: the user's settings go before the source's own; a setting that no client has is refused when the
query is planned, not in a task. Reading is `read_committed` unless `kafka.isolation.level` says otherwise.
"""

from __future__ import annotations

from tidelog.client.admin.offset_types import IsolationLevel
from tidelog.client.admin.settings import ADMIN_SETTINGS
from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.errors import ConfigError
from tidelog.spark.options import KAFKA_PREFIX, OptionError, Options

# Measured with records of 100 bytes: smaller answers cost more requests than they save in memory.
_FETCH_BYTES = 8 * 1024 * 1024
_TASK_DEFAULTS = {
    "isolation.level": "read_committed",
    "max.partition.fetch.bytes": str(_FETCH_BYTES),
    "client.id": "tidelog-spark",
}


def isolation_level(options: Options) -> IsolationLevel:
    level = options.kafka.get("isolation.level", _TASK_DEFAULTS["isolation.level"]).strip().lower()
    return "read_uncommitted" if level == "read_uncommitted" else "read_committed"


def for_tasks(options: Options) -> dict[str, str]:
    """What a task reads with. The group is left out: only the driver publishes for it."""
    settings = {**_TASK_DEFAULTS, **options.kafka}
    settings.pop("group.id", None)
    try:
        ConsumerSettings.read(settings, {})
    except ConfigError as error:
        raise OptionError(f"one of the options that begin with {KAFKA_PREFIX}: {error}") from error
    return settings


def for_driver(options: Options) -> dict[str, str]:
    """What the driver asks with: the settings that its client has too."""
    settings = {"client.id": _TASK_DEFAULTS["client.id"], **options.kafka}
    return {name: text for name, text in settings.items() if name in ADMIN_SETTINGS.rows}


def group_id(options: Options) -> str | None:
    """The group to publish for."""
    return options.get("group.id") or options.kafka.get("group.id") or None
