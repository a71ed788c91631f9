"""The page about pipelines: settings, names and headers as the code has them; its file can be loaded."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import tidelog.pipeline
from tidelog.pipeline import dead_letters
from tidelog.pipeline.declaration import META_COLUMNS
from tidelog.pipeline.loading import load, load_all
from tidelog.pipeline.session import settings_for, settings_markdown

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "pipelines.md").read_text(encoding="utf-8")


def test_settings() -> None:
    assert settings_markdown() in PAGE, "python -m tidelog.pipeline.session prints the table"


def test_what_the_user_says_wins() -> None:
    values = settings_for("local[3]", {"spark.ui.port": "5000"}, {"spark.ui.port": "6000"})
    assert values["spark.ui.port"] == "6000"
    assert values["spark.sql.shuffle.partitions"] == "3"
    assert "spark.sql.shuffle.partitions" not in settings_for("spark://host:7077")


@pytest.mark.parametrize(
    "name", [name for name in tidelog.pipeline.__all__ if name.endswith(("Input", "Output", "Map"))]
)
def test_public_names(name: str) -> None:
    if name not in ("Output", "TableOutput"):  # what the others share
        assert f"{name}(" in PAGE


def test_headers_of_dead_letters() -> None:
    headers = [
        value for name, value in vars(dead_letters).items() if name.isupper() and str(value).startswith("tidelog.")
    ]
    assert len(headers) == 9
    for header in headers:
        assert f"`{header}`" in PAGE or f"`.{header.rpartition('.')[2]}`" in PAGE


def test_columns_beside_the_value() -> None:
    assert all(f"`{column}`" in PAGE for column in META_COLUMNS)


def test_the_first_file(tmp_path: Path) -> None:
    block = re.search(r"    # revenue\.py\n(.*?)\n\n    tidelog pipeline run", PAGE, re.DOTALL)
    assert block is not None
    file = tmp_path / "revenue_of_the_page.py"
    file.write_text("\n".join(line[4:] for line in block.group(1).splitlines()))
    before = list(sys.path)
    try:
        assert load(file).name == "revenue"
    finally:
        sys.path[:] = before
        sys.modules.pop("revenue_of_the_page", None)


@pytest.mark.parametrize("example", sorted((DOCS / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples(example: Path) -> None:
    assert f"(examples/{example.name})" in PAGE
    before = list(sys.path)
    try:
        assert load_all(example)
    finally:
        sys.path[:] = before
        sys.modules.pop(example.stem, None)
