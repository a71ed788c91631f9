"""Generates the documentation page on client settings from their tables.

`python -m tidelog.client.settings_docs` prints the page; a test compares it with `docs/client-settings.md`. What always
holds: every setting is on the page, with its help text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from tidelog.client.admin.settings import ADMIN_SETTINGS
from tidelog.client.consumer.settings import CONSUMER_SETTINGS
from tidelog.client.producer.settings import PRODUCER_TABLE
from tidelog.client.settings import CLIENT_SETTINGS, ClientSettingsTable, ObjectSetting
from tidelog.common.settings import Setting

TABLES: tuple[ClientSettingsTable, ...] = (PRODUCER_TABLE, CONSUMER_SETTINGS, ADMIN_SETTINGS)

_INTRODUCTION = """\
# Client settings

Generated from the clients' own tables with `python -m tidelog.client.settings_docs > docs/client-settings.md`.

`Producer`, `Consumer`, `Admin` and their async versions take settings as keyword arguments with underscores, or as a
mapping with Kafka's dotted names. If both set the same one, the keyword argument wins:

```python
from tidelog import Producer

producer = Producer({"bootstrap.servers": "127.0.0.1:9092"}, linger_ms=20, compression_type="zstd")
```

Names and defaults are Kafka's where Kafka has the setting. An unknown name or an invalid value raises `ConfigError`
when you create the client; the message suggests what is valid.
"""


def settings_markdown() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield "## All clients\n"
    yield from _sections(CLIENT_SETTINGS)
    shared = {row.name for row in CLIENT_SETTINGS}
    for table in TABLES:
        own = [row for row in table.rows.values() if row.name not in shared]
        if own:
            yield f"## {table.owner} and Async{table.owner}\n"
            yield from _sections(own)


def _sections(rows: Iterable[Setting]) -> Iterator[str]:
    for row in sorted(rows, key=lambda row: row.name):
        yield f"### {row.name}\n"
        yield f"{row.help}\n"
        yield f"{'; '.join(_facts(row))}.\n"


def _facts(row: Setting) -> Iterator[str]:
    kind = "a Python object" if isinstance(row, ObjectSetting) else row.type.name.lower()
    yield f"`{row.name.replace('.', '_')}=`, {kind}"
    default = row.format(row.default)
    yield "default: none" if default is None else f"default: `{default}`" if default else "default: empty"


if __name__ == "__main__":
    sys.stdout.write(settings_markdown())
