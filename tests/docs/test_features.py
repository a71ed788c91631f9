"""The features page: every test it links exists, and its table of APIs is what the broker serves.

Run as a program this prints the table, to be put at the end of docs/features.md.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tidelog.broker import handlers
from tidelog.broker.registry import find_handler
from tidelog.protocol import all_apis

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "features.md"
ROWS = (
    *("A1", "A2", "A3", "A4", "A5", "A6", "A7", "A9", "A10", "A11"),
    *("B2", "B3", "C1", "C2", "C3", "C4", "C5", "C6", "C7"),
    *("D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D9", "E4", "E5"),
    *("H1", "H2", "H4", "H5", "I1"),
)

LINKED_TESTS = sorted(set(re.findall(r"\[(test_\w+)\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8"))))


def api_table() -> str:
    handlers.load_all()
    lines = ["| key | API | versions | handler |", "|---|---|---|---|"]
    for api in all_apis():
        handler = find_handler(api.key)
        if handler is None:
            continue
        versions = str(handler.version_min)
        if handler.version_max > handler.version_min:
            versions += f" to {handler.version_max}"
        if handler.unstable_version is not None:
            versions += f", {handler.unstable_version} where unstable versions are enabled"
        file = f"{handler.handle.__module__.rsplit('.', 1)[1]}.py"
        lines.append(f"| {api.key} | {api.name} | {versions} | [{file}](../src/tidelog/broker/handlers/{file}) |")
    return "\n".join(lines) + "\n"


def test_the_table_of_apis_is_what_the_broker_serves() -> None:
    assert PAGE.read_text(encoding="utf-8").endswith(api_table()), "run: python tests/docs/test_features.py"


@pytest.mark.parametrize(("name", "link"), LINKED_TESTS)
def test_linked_tests_exist(name: str, link: str) -> None:
    tree = ast.parse((PAGE.parent / link).read_text(encoding="utf-8"))
    assert name in [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


@pytest.mark.parametrize("row", ROWS)
def test_every_row_links_a_test(row: str) -> None:
    (line,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {row} |")]
    assert re.search(r"\[test_\w+\]\(\.\./tests/(compat|chaos|scenario)/", line)


def test_clients_of_the_linked_tests_are_real() -> None:
    for _, link in LINKED_TESTS:
        text = (PAGE.parent / link).read_text(encoding="utf-8")
        # Rows about our own clients, and about Spark, are shown by these, as people import and start them.
        is_own = "/scenario/client/" in link or re.search("/(spark|pipeline)/|/test_spark_", link)
        own = r"|^from tidelog import |pyspark|PipelineRun|kcat" if is_own else ""
        assert re.search(r"confluent_kafka|aiokafka|import kafka\b|client_drivers" + own, text, re.MULTILINE), link


if __name__ == "__main__":
    print(api_table(), end="")
