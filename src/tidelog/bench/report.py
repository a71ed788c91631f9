"""Rows of a comparison, as a table for people, Markdown for the docs and plain data for programs."""

from __future__ import annotations

import math
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
    # What our own figure must stay below, whatever the ratio.
    limit: float | None = None

    @property
    def ratio(self) -> float:
        """How many times better ours is; below 1 it is worse, infinite beside what was too little to be measured."""
        better, other = (self.ours, self.theirs) if self.higher_is_better else (self.theirs, self.ours)
        if better == other:
            return 1.0
        return better / other if other else math.inf

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "not met"}[self.is_met]

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        if self.target is None and self.limit is None:
            return None
        return (self.target is None or self.ratio >= self.target) and (self.limit is None or self.ours < self.limit)

    @property
    def goal(self) -> str:
        goals = [] if self.target is None else [f"{self.target:g}x"]
        if self.limit is not None:
            goals.append(f"below {self.limit:g}")
        return ", ".join(goals)

    def as_data(self) -> dict[str, object]:
        return {
            "what": self.what,
            "unit": self.unit,
            "tidelog": self.ours,
            "peer": self.theirs,
            "ratio": round(self.ratio, 3) if math.isfinite(self.ratio) else None,
            "target_ratio": self.target,
            "limit": self.limit,
            "met": self.is_met,
        }


HEADINGS = ("what", "unit", "Tidelog", "peer", "ratio", "goal", "")


def cells(row: Row) -> tuple[str, ...]:
    return (row.what, row.unit, figure(row.ours), figure(row.theirs), f"{row.ratio:.2f}x", row.goal, row.verdict)


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
