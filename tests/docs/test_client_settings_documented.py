"""Every setting of a client stands on its page, and can be given as a typed keyword argument."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import pytest

from tidelog.client.admin.settings import AdminOptions
from tidelog.client.consumer.settings import ConsumerOptions
from tidelog.client.producer.settings import ProducerOptions
from tidelog.client.settings import ClientSettingsTable
from tidelog.client.settings_docs import TABLES, settings_markdown

PAGE = Path(__file__).parents[2] / "docs" / "client-settings.md"
OPTIONS = {"Producer": ProducerOptions, "Consumer": ConsumerOptions, "Admin": AdminOptions}


def test_the_page_is_what_the_tables_say() -> None:
    assert PAGE.read_text() == settings_markdown(), (
        "run: python -m tidelog.client.settings_docs > docs/client-settings.md"
    )


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.owner)
def test_keyword_arguments_and_table_name_the_same_settings(table: ClientSettingsTable) -> None:
    rows = {name.replace(".", "_") for name in table.rows}
    options = OPTIONS[table.owner]
    assert set(get_type_hints(options)) == rows
