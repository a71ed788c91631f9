"""The page on how the broker answers: numbered without gaps, every row with tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "behaviours.md"
NUMBERS = range(1, 64)

ROWS = {int(number): line for number, line in re.findall(r"^\| (\d+) (\|.*)$", PAGE.read_text(encoding="utf-8"), re.M)}


def links(row: str) -> list[tuple[str, str]]:
    return re.findall(r"\[(test_\w+)\]\(([^)]+)\)", row)


def test_every_number_has_its_row() -> None:
    numbers = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert [int(number) for number in numbers] == list(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_tests_of_a_row_exist(number: int) -> None:
    row = ROWS[number]
    assert links(row)
    for name, link in links(row):
        # Those directories hold the tests that talk to a whole broker over a socket.
        assert re.match(r"\.\./tests/(scenario/(network|admin|data|groups)|chaos)/test_\w+\.py$", link)
        tree = ast.parse((PAGE.parent / link).read_text(encoding="utf-8"))
        assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_tests_name_behaviours_that_are_on_the_page() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        for numbers in re.findall(r"\"\"\"Behaviours? ((?:\d+(?:, | and | to )?)+)", path.read_text(encoding="utf-8")):
            assert {int(number) for number in re.findall(r"\d+", numbers)} <= set(NUMBERS), path
