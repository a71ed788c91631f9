"""Generates the settings page of the documentation from the settings table.

`python -m tidelog.server.settings_docs` prints it; a test compares it with `docs/settings.md`. What always holds: every
row of the table is on the page, with the help text that clients get from the broker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tidelog.common.settings import Setting, SettingScope
from tidelog.server.settings_load import environment_name
from tidelog.server.settings_table import TABLE

_INTRODUCTION = """\
# Settings

This page is generated from the settings table by `python -m tidelog.server.settings_docs > docs/settings.md`.

Names, types and defaults are Kafka 4.3's; where a default differs, the text says why. Settings that only Tidelog has
say so or start with `tidelog.`. A setting that is not on this page is rejected at startup, with a suggestion of
the closest name.

## How to set them

A broker reads its settings from these places; later ones take precedence:

1. a file, `tidelog serve --config FILE`: TOML (`log.segment.bytes = 1073741824`, or tables: `[log.segment]` and
   `bytes = 1073741824`) or Java properties, like Kafka's `server.properties`. In TOML, quote a name that starts with
   the full name of another setting: `"max.connections.per.ip" = 100`;
2. the environment: `TIDELOG_LOG_SEGMENT_BYTES` is `log.segment.bytes`;
3. the command line: `tidelog serve --set log.segment.bytes=1073741824`.

Settings marked *dynamic* can be changed while brokers run, for one broker or for all of them. So can all topic
and group settings. Changes take effect without a restart unless the text says otherwise. A topic's or a group's own
setting comes first, then the broker's dynamic setting, then the dynamic setting for all brokers, then the
configuration, then the default.
"""


def settings_markdown() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield "## Topic settings\n"
    for row in sorted(TABLE.rows(SettingScope.TOPIC), key=lambda row: row.name):
        yield from _section(row, _topic_facts(row))
    yield "## Group settings\n"
    for row in sorted(TABLE.rows(SettingScope.GROUP), key=lambda row: row.name):
        yield from _section(row, _topic_facts(row))
    yield "## Broker settings\n"
    for row in sorted(TABLE.rows(SettingScope.BROKER), key=lambda row: row.name):
        yield from _section(row, _broker_facts(row))


def _section(row: Setting, facts: Iterator[str]) -> Iterator[str]:
    yield f"### {row.name}\n"
    yield f"{row.help}\n"
    yield f"{'; '.join(facts)}.\n"


def _topic_facts(row: Setting) -> Iterator[str]:
    yield from _common_facts(row)
    if row.broker_name is not None:
        yield f"broker's default: `{row.broker_name}`"


def _broker_facts(row: Setting) -> Iterator[str]:
    yield from _common_facts(row)
    if row.synonyms:
        yield f"if unset, the first of these that is set: {', '.join(f'`{name}`' for name in row.synonyms)}"
    if row.dynamic:
        yield "dynamic"
    yield f"environment: `{environment_name(row.name)}`"


def _common_facts(row: Setting) -> Iterator[str]:
    yield f"Type {row.type.name.lower()}"
    default = row.format(row.default)
    yield "default: none" if default is None else f"default: `{default}`" if default else "default: empty"


if __name__ == "__main__":
    sys.stdout.write(settings_markdown())
