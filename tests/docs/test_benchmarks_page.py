"""Every benchmark has its place on the page, and publishing one changes nothing but its table."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tidelog.cli.bench import bench

ROOT = Path(__file__).parents[2]
NAMES = [command.name or command.callback.__name__ for command in bench.registered_commands if command.callback]


@pytest.fixture
def publish() -> ModuleType:
    spec = importlib.util.spec_from_file_location("publish", ROOT / "benchmarks" / "publish.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_a_measured_table_finds_its_place(publish: ModuleType, name: str) -> None:
    page = publish.PAGE.read_text()
    published = publish.with_table(page, name, "| what |\n|---|\n| figures |\n")
    before, after = page.split(f"<!-- bench {name} -->\n")
    rest = after.partition("<!-- end -->\n")[2]
    assert published == f"{before}<!-- bench {name} -->\n\n| what |\n|---|\n| figures |\n\n<!-- end -->\n{rest}"
    assert f"tidelog bench {name}" in page


def test_what_is_no_table_or_has_no_place_is_refused(publish: ModuleType) -> None:
    with pytest.raises(SystemExit, match="not a table"):
        publish.with_table(publish.PAGE.read_text(), NAMES[0], "Traceback (most recent call last):")
    with pytest.raises(SystemExit, match="no place for the table of 'nothing'"):
        publish.with_table(publish.PAGE.read_text(), "nothing", "| what |")
