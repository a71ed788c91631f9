"""The settings page of the documentation, made from the settings table.

`python -m tidelog.server.settings_docs` prints it; a test compares it with `docs/settings.md`. What always holds: every
row of the table stands on the page, with its help as the broker tells it to clients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tidelog.common.settings import Setting, SettingScope
from tidelog.server.settings_load import environment_name
from tidelog.server.settings_table import TABLE

_INTRODUCTION = """\
# Settings

This page is made from the broker's own table by `python -m tidelog.server.settings_docs > docs/settings.md`.

Names, types and defaults are those of Kafka 4.3; where a default differs, its text says why. A setting that is not on
this page is refused at the start, with the nearest name that is.

## How to set them

A broker's settings come from, each outranking the one before:

1. a file, `tidelog serve --config FILE`: TOML (`log.segment.bytes = 1073741824`, or tables: `[log.segment]` and
   `bytes = 1073741824`) or Java properties, as Kafka's `server.properties`. In TOML, a name that starts with another
   setting's whole name is quoted: `"max.connections.per.ip" = 100`;
2. the environment: `TIDELOG_LOG_SEGMENT_BYTES` is `log.segment.bytes`;
3. the command line: `tidelog serve --set log.segment.bytes=1073741824`.

Those marked *dynamic* may be changed while brokers run, for one broker or for all; so may all of a topic's settings.
Both take effect without a restart. A topic's setting counts first, then what was set at run time for the broker, for
all brokers, at the broker's start, and last the default.
"""


def settings_markdown() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield "## Topic settings\n"
    for row in sorted(TABLE.rows(SettingScope.TOPIC), key=lambda row: row.name):
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
        yield f"without a value, the first of these that has one: {', '.join(f'`{name}`' for name in row.synonyms)}"
    if row.dynamic:
        yield "dynamic"
    yield f"environment: `{environment_name(row.name)}`"


def _common_facts(row: Setting) -> Iterator[str]:
    yield f"Type {row.type.name.lower()}"
    default = row.format(row.default)
    yield "default: none" if default is None else f"default: `{default}`" if default else "default: empty"


if __name__ == "__main__":
    sys.stdout.write(settings_markdown())
