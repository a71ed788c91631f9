"""Rows of a comparison, as a table for people, Markdown for the docs and plain data for programs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One measured quantity on both sides: medians of the runs, and how much better ours is."""

    what: str
    unit: str
    ours: float
    theirs: float
    higher_is_better: bool
    target: float | None = None

    @property
    def ratio(self) -> float:
        """How many times better ours is; below 1 it is worse."""
        return self.ours / self.theirs if self.higher_is_better else self.theirs / self.ours

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "met" if self.ratio >= self.target else "not met"

    def as_data(self) -> dict[str, object]:
        return {
            "what": self.what,
            "unit": self.unit,
            "tidelog": self.ours,
            "peer": self.theirs,
            "ratio": round(self.ratio, 3),
            "target_ratio": self.target,
            "met": None if self.target is None else self.ratio >= self.target,
        }


def median_row(
    what: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    higher_is_better: bool,
    target: float | None,
) -> Row:
    return Row(what, unit, statistics.median(ours), statistics.median(theirs), higher_is_better, target)


HEADINGS = ("what", "unit", "Tidelog", "peer", "ratio", "goal", "")


def cells(row: Row) -> tuple[str, ...]:
    goal = "" if row.target is None else f"{row.target:g}x"
    return (row.what, row.unit, figure(row.ours), figure(row.theirs), f"{row.ratio:.2f}x", goal, row.verdict)


def markdown(rows: Sequence[Row], peer: str) -> str:
    headings = [peer if heading == "peer" else heading for heading in HEADINGS]
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def figure(value: float) -> str:
    """A figure with as many digits as tell something."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"
