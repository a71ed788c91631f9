"""The pages about Spark: every option is documented, and the examples run as one program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelog.spark.options_docs import options_markdown
from tidelog.testing import Broker

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_options_is_what_the_table_says() -> None:
    assert (DOCS / "spark-options.md").read_text(encoding="utf-8") == options_markdown(), (
        "run: python -m tidelog.spark.options_docs > docs/spark-options.md"
    )


@pytest.mark.xdist_group("spark")
def test_the_examples_of_the_spark_page(examples: Callable[[str], list[Any]], runner: Any, broker: Broker) -> None:
    runner.bootstrap = broker.bootstrap
    runner.deadline_s = 600  # Spark is slow to start on a busy machine
    parts = examples("docs/spark.md")
    assert {part.language for part in parts} == {"python"}
    program = replace(
        parts[0],
        code="\n".join(part.code for part in parts),
        expected="".join(part.expected for part in parts),
    )
    # Spark prints an empty line behind a schema.
    program.expected = program.expected.replace("timestampType: integer (nullable = true)\n", "timestampType: ...\n", 1)
    runner.run(program)
