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
    *("A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A9", "A10", "A11"),
    *("B1", "B2", "B3", "B4", "B5", "B6", "B7", "C1", "C2", "C3", "C4", "C5", "C6", "C7"),
    *("D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D9"),
    *("E1", "E2", "E3", "E4", "E5"),
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


def _row(line: str) -> str | None:
    found = re.match(r"\| ([A-I]\d+) \|", line)
    return found[1] if found else None


LINES = {row: line for line in PAGE.read_text(encoding="utf-8").splitlines() if (row := _row(line)) is not None}


def test_the_rows_are_those_that_are_done() -> None:
    """Taking a row off the page, or adding one, is a decision."""
    assert tuple(LINES) == ROWS


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_shown_with_a_real_client(row: str) -> None:
    """By a test that every run has; what only `make compat` or `make soak` runs comes on top."""
    always = re.split(r"\*make \w+\*:", LINES[row])[0]
    links = re.findall(r"\[test_\w+\]\(([^)]+)\)", always)
    assert any(_has_a_real_client(link) for link in links), links


def _has_a_real_client(link: str) -> bool:
    if "/unit/" in link:
        return False
    text = (PAGE.parent / link).read_text(encoding="utf-8")
    # Rows about our own clients and about Spark are shown by these, as people import and start them.
    is_own = "/scenario/client/" in link or re.search("/(spark|pipeline)/|/test_spark_", link)
    own = r"|^from tidelog import |pyspark|PipelineRun|kcat" if is_own else ""
    return re.search(r"confluent_kafka|aiokafka|import kafka\b|client_drivers" + own, text, re.MULTILINE) is not None


@pytest.mark.parametrize(("name", "link"), LINKED_TESTS)
def test_linked_tests_are_said_to_run_where_they_run(name: str, link: str) -> None:
    runs_in = _runs_in(name, PAGE.parent / link)
    for line in LINES.values():
        for place in re.finditer(rf"\[{name}\]\({re.escape(link)}\)", line):
            labels = re.findall(r"\*make (\w+)\*:", line[: place.start()])
            assert (labels[-1] if labels else "test") == runs_in


def _runs_in(name: str, path: Path) -> str:
    """Which make target runs a test, by its marks and those of its module."""
    marks: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        is_marks = isinstance(node, ast.Assign) and any(
            getattr(each, "id", "") == "pytestmark" for each in node.targets
        )
        if is_marks:
            marks.update(re.findall(r"mark\.(\w+)", ast.unparse(node)))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            marks.update(*(re.findall(r"mark\.(\w+)", ast.unparse(each)) for each in node.decorator_list))
    return "compat" if "compat" in marks else "soak" if "soak" in marks else "test"


if __name__ == "__main__":
    print(api_table(), end="")
