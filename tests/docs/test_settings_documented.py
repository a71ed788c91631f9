"""The settings page holds what the table holds, and the table holds no setting that nothing reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.common.settings import SettingScope
from tidelog.server.settings_docs import settings_markdown
from tidelog.server.settings_table import TABLE

ROOT = Path(__file__).parents[2]
SOURCES = [
    path.read_text(encoding="utf-8")
    for path in (ROOT / "src" / "tidelog").rglob("*.py")
    if not path.name.startswith("settings_")
]


def test_settings_page_is_what_the_table_says() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == settings_markdown(), "run: python -m tidelog.server.settings_docs > docs/settings.md"


@pytest.mark.parametrize("name", [row.name for row in TABLE.rows(SettingScope.BROKER)])
def test_every_broker_setting_is_read_somewhere(name: str) -> None:
    topic_rows = list(TABLE.rows(SettingScope.TOPIC))
    gives_a_topic_default = any(row.broker_name == name for row in topic_rows)
    stands_in_for_another = any(name in row.synonyms for row in TABLE.rows(SettingScope.BROKER))
    assert gives_a_topic_default or stands_in_for_another or any(f'"{name}"' in source for source in SOURCES), (
        f"{name} has no effect: nothing reads it"
    )
