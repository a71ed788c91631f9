"""The steps of a switch from one version to another, and what the processes of both do in the meantime.

What always holds: each step can be repeated, and the registry says which one is next, so after a crash the same command
finishes the switch. Until `write` has taken effect, readers see the old version and the switch can be abandoned; from
then on, they see the new one. Does no I/O: `switch_stage` carries out the steps, and `hosting` runs versions.

    prepare    make sure that the new version runs beside the old one, and read both outputs in advance
    stop-old   the old version stops at a batch boundary
    catch-up   the new version reads at least as far, and stops at a batch boundary
    write      readers see the new version: changed keys in one transaction, then table pointers
    start-new  the new version continues where it stopped, and writes to the declared outputs
    keep       the old version's output is kept for a rollback
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from tidelog.pipeline.versions.registry import Registry, RegistryError
from tidelog.pipeline.versions.registry_rows import OLD_OFFSETS, Offsets, Role, Switch, has_reached, offsets_from_json


class Step(StrEnum):
    """The steps in order; a finished switch is at `DONE`."""

    PREPARE = "prepare"
    STOP_OLD = "stop-old"
    CATCH_UP = "catch-up"
    WRITE = "write"
    START_NEW = "start-new"
    KEEP = "keep"
    DONE = "done"


_ORDER = list(Step)


class Stage(Protocol):
    """Carries out the steps. Each returns data for the registry, and may be called again after it is done."""

    def prepare(self, switch: Switch) -> Mapping[str, Any]: ...
    def stop_old(self, switch: Switch) -> Mapping[str, Any]: ...
    def catch_up(self, switch: Switch) -> Mapping[str, Any]: ...
    def write(self, switch: Switch) -> Mapping[str, Any]: ...
    def start_new(self, switch: Switch) -> Mapping[str, Any]: ...
    def keep(self, switch: Switch) -> Mapping[str, Any]: ...
    def undo(self, switch: Switch) -> None:
        """Undo the steps before `write`; raises an error if readers have already seen the new version."""


def drive(registry: Registry, switch: Switch, stage: Stage, tell: Callable[[Step], None] = lambda step: None) -> Switch:
    """Carry out the remaining steps."""
    while switch.is_open:
        step = Step(switch.step)
        tell(step)
        found = _action(stage, step)(switch)
        following = _ORDER[_ORDER.index(step) + 1]
        switch = registry.advance_switch(
            switch,
            following,
            found,
            live_version=switch.to_version if step is Step.WRITE else None,
            outcome="done" if following is Step.DONE else None,
        )
    return switch


def abandon(registry: Registry, switch: Switch, stage: Stage) -> Switch:
    """Abandon a switch: the old version continues as if nothing had happened."""
    if has_landed(switch):
        raise RegistryError(
            f"readers of {switch.pipeline} already see version {switch.to_version}: finish with "
            f"'tidelog pipeline {switch.kind} {switch.pipeline}', then 'tidelog pipeline rollback {switch.pipeline}'"
        )
    stage.undo(switch)
    return registry.advance_switch(switch, switch.step, outcome="abandoned")


def _action(stage: Stage, step: Step) -> Callable[[Switch], Mapping[str, Any]]:
    return {
        Step.PREPARE: stage.prepare,
        Step.STOP_OLD: stage.stop_old,
        Step.CATCH_UP: stage.catch_up,
        Step.WRITE: stage.write,
        Step.START_NEW: stage.start_new,
        Step.KEEP: stage.keep,
    }[step]


def has_landed(switch: Switch) -> bool:
    """Whether readers see the new version."""
    return _ORDER.index(Step(switch.step)) > _ORDER.index(Step.WRITE)


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a version's checkpoint: the offsets up to which batches are done, and those that are planned.

    It is not clean while a batch is running, or if the process died during one.
    """

    done: Offsets
    planned: Offsets
    is_clean: bool


Move = Literal["run-live", "run-shadow", "wait", "end"]


def next_move(version: int, last_role: Role, live_version: int | None, switch: Switch | None, at: Position) -> Move:
    """What the process of a version does next, after its run in the last role has ended (or has not started)."""
    if switch is not None and switch.to_version == version and live_version != version:
        return _move_of_new(switch, at)
    if switch is not None and switch.from_version == version and live_version == version:
        return _move_of_old(switch, at)
    if live_version == version:
        return "run-live"
    # Readers see another version: a version that was live has been replaced, and a shadow keeps running beside it.
    return "end" if last_role == "live" else "run-shadow"


def _move_of_new(switch: Switch, at: Position) -> Move:
    step = Step(switch.step)
    if step in (Step.PREPARE, Step.STOP_OLD):
        return "run-shadow"
    if step is Step.CATCH_UP and not is_caught_up(switch, at):
        return "run-shadow"
    return "wait"


def _move_of_old(switch: Switch, at: Position) -> Move:
    step = Step(switch.step)
    if step is Step.PREPARE or (step is Step.STOP_OLD and not at.is_clean):
        return "run-live"
    return "wait"


def is_caught_up(switch: Switch, at: Position) -> bool:
    """Whether the new version is at a batch boundary, at or beyond the point where the old one stopped."""
    return at.is_clean and has_reached(at.done, offsets_from_json(switch.data[OLD_OFFSETS]))
