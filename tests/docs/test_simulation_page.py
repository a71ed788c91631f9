"""The page about the simulation names all that there is to name: troubles, rules, and planted mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster_caught import CAUGHT, NOT_CAUGHT, OPEN, RARE
from cluster_invariants import Invariant
from cluster_mistakes import MISTAKES
from cluster_plan import TROUBLES

PAGE = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_cells(text: str) -> list[str]:
    """What is set as code in the first cell of each row."""
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_trouble_is_described() -> None:
    assert sorted(first_cells(section("What goes wrong"))) == sorted(TROUBLES)


def test_every_invariant_is_described() -> None:
    assert first_cells(section("What must hold")) == list(Invariant)


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Seen in every test run", CAUGHT),
        ("Seen by more seeds", RARE),
        ("Not seen", NOT_CAUGHT),
        ("Not decided yet", OPEN),
    ],
)
def test_every_mistake_is_described(title: str, names: dict[str, object]) -> None:
    text = section("Planted mistakes").split(f"### {title}\n")[1].split("\n### ")[0]
    assert sorted(first_cells(text)) == sorted(names)
    for name in names:
        assert f"| `{name}` | {MISTAKES[name].breaks.rstrip('.')} |" in text
