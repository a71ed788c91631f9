"""The examples of the guides run as they stand, and what they name exists."""

from __future__ import annotations

import configparser
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from database_servers import running_postgres
from tidelog.client.consumer.settings import CONSUMER_SETTINGS
from tidelog.client.producer.settings import PRODUCER_TABLE
from tidelog.common.settings import SettingScope
from tidelog.server.settings_table import TABLE
from tidelog.testing import Broker

ROOT = Path(__file__).parents[2]


def test_the_examples_about_lag(
    examples: Callable[[str], list[Any]], runner: Any, start_broker: Callable[..., Broker]
) -> None:
    runner.bootstrap = start_broker().bootstrap
    for example in examples("docs/consumer-lag.md"):
        runner.run(example)


def test_the_example_with_postgresql(
    examples: Callable[[str], list[Any]], runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = examples("docs/exactly-once-postgres.md")
    assert example.expected
    with running_postgres() as server:
        monkeypatch.setenv("SHOP_DATABASE", server.url)
        runner.run(example)


def test_the_tuning_page_names_settings_that_exist() -> None:
    text = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    known = {*CONSUMER_SETTINGS.rows, *PRODUCER_TABLE.rows}
    known |= {row.name for scope in SettingScope for row in TABLE.rows(scope)}
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)", text)) - {"num.io.threads"}
    assert len(named) > 20
    assert named - known == set()


def test_the_unit_starts_a_broker_with_options_that_exist() -> None:
    page = (ROOT / "docs" / "systemd.md").read_text(encoding="utf-8")
    block = page.split("`/etc/systemd/system/tidelog.service`:\n\n")[1].split("\n\nThen:")[0]
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(textwrap.dedent(block))
    command = unit["Service"]["ExecStart"].split()
    assert command[:2] == ["/opt/tidelog/bin/tidelog", "serve"]
    documented = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    options = [word for word in command if word.startswith("--")]
    assert options
    for option in options:
        assert f"`{option}" in documented, option
    assert unit["Service"]["RestartPreventExitStatus"] == "2"
