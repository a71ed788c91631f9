"""Client settings for the driver and the tasks, taken from the options that start with `kafka.`.

What always holds: the user's settings override the source's defaults; unknown client settings are rejected when the
query is planned, not in a task. Reads are `read_committed` unless `kafka.isolation.level` says otherwise.
"""

from __future__ import annotations

from tidelog.client.admin.settings import ADMIN_SETTINGS
from tidelog.client.admin.types import IsolationLevel
from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.errors import ConfigError
from tidelog.spark.options import KAFKA_PREFIX, OptionError, Options

# Measured with records of 100 bytes: with smaller responses, the extra requests cost more than the memory they save.
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
    """Settings for the consumer of a task, without the group: only the driver publishes offsets."""
    settings = {**_TASK_DEFAULTS, **options.kafka}
    settings.pop("group.id", None)
    try:
        ConsumerSettings.read(settings, {})
    except ConfigError as error:
        raise OptionError(f"one of the options that start with {KAFKA_PREFIX}: {error}") from error
    return settings


def for_driver(options: Options) -> dict[str, str]:
    """Settings for the driver's admin client: those that it supports."""
    settings = {"client.id": _TASK_DEFAULTS["client.id"], **options.kafka}
    return {name: text for name, text in settings.items() if name in ADMIN_SETTINGS.rows}


def group_id(options: Options) -> str | None:
    """The group under which the query publishes its offsets."""
    return options.get("group.id") or options.kafka.get("group.id") or None
