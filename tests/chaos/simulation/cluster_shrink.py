"""Shrinks the plan of a failing run: fewer troubles, fewer applications, calmer weather, less time.

What always holds: the smaller plan breaks the same rule; it is found in a bounded number of runs. First whole kinds of
trouble are left out, then parts of what remains, halves before quarters, then single ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cluster_invariants import Invariant, InvariantError
from cluster_plan import Plan
from cluster_run import run_plan

RUNS_MAX = 150
_AFTER_LAST_S = 1.0


def broken_by(plan: Plan, base: Path) -> Invariant | None:
    """The rule that a run breaks."""
    try:
        run_plan(plan, base)
    except InvariantError as error:
        return error.invariant
    except Exception:  # noqa: BLE001 - whatever ends a run for another reason
        return Invariant.INTERNAL
    return None


class Shrinking:
    """One plan on its way to a smaller one."""

    def __init__(self, plan: Plan, fails: Callable[[Plan], bool], runs_max: int = RUNS_MAX) -> None:
        self.plan = plan
        self.runs = 0
        self._fails = fails
        self._runs_max = runs_max

    def run(self) -> Plan:
        before: Plan | None = None
        while before != self.plan and self.runs < self._runs_max:
            before = self.plan
            for smaller in (self._without_kinds, self._without_parts, self._without_applications, self._calmer):
                smaller()
        return self.plan

    def _try(self, plan: Plan) -> bool:
        if plan == self.plan or self.runs >= self._runs_max:
            return False
        self.runs += 1
        if not self._fails(plan):
            return False
        self.plan = plan
        return True

    def _without_kinds(self) -> None:
        for kind in sorted({trouble.kind for trouble in self.plan.troubles}):
            self._try(self.plan.with_troubles(each for each in self.plan.troubles if each.kind != kind))

    def _without_parts(self) -> None:
        size = max(1, len(self.plan.troubles) // 2)
        while True:
            start = 0
            while start < len(self.plan.troubles):
                troubles = self.plan.troubles
                if not self._try(self.plan.with_troubles(troubles[:start] + troubles[start + size :])):
                    start += size
            if size == 1:
                return
            size //= 2

    def _without_applications(self) -> None:
        for lessen in _LESS:
            self._try(lessen(self.plan))

    def _calmer(self) -> None:
        for name in self.plan.weather:
            self._try(replace(self.plan, weather={key: x for key, x in self.plan.weather.items() if key != name}))
        for name in self.plan.store_weather:
            calmer = {key: value for key, value in self.plan.store_weather.items() if key != name}
            self._try(replace(self.plan, store_weather=calmer))
        last_s = max((trouble.at_s for trouble in self.plan.troubles), default=0.0) + _AFTER_LAST_S
        if last_s < self.plan.trouble_s:
            self._try(replace(self.plan, trouble_s=last_s))


_LESS: tuple[Callable[[Plan], Plan], ...] = (
    lambda plan: replace(plan, administers=False),
    lambda plan: replace(plan, copies=False),
    lambda plan: replace(plan, members=()),
    lambda plan: replace(plan, members=plan.members[:1]),
    lambda plan: replace(plan, writers=plan.writers[:1]),
    lambda plan: replace(plan, writers=(5,)),
)


def shrink(plan: Plan, base: Path) -> Plan:
    """The smallest plan that was found to break the same rule."""
    broken = broken_by(plan, base)
    return Shrinking(plan, lambda smaller: broken_by(smaller, base) is broken).run()
