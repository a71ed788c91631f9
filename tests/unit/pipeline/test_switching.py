"""The steps of a switch, interrupted at every point, and what the processes of both versions do meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tidelog.pipeline.versions.registry import Registry, RegistryError
from tidelog.pipeline.versions.registry_rows import OLD_OFFSETS, Role, Switch
from tidelog.pipeline.versions.switching import Move, Position, Step, abandon, drive, next_move

STEPS: list[Step] = [step for step in Step if step is not Step.DONE]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry(tmp_path) as opened:
        for version in (1, 2):
            opened.note_version("revenue", version, file="shop.py", source="")
        opened.start_run("revenue", 1, "live")
        yield opened


class Killed(BaseException):
    """The process ends here."""


class FakeStage:
    """Notes what was done; `dies` says in which step, before or after its work."""

    def __init__(self, dies: tuple[Step, str] | None = None) -> None:
        self.done: list[Step] = []
        self._dies = dies

    def _do(self, step: Step, **found: Any) -> Mapping[str, Any]:
        if self._dies == (step, "before"):
            raise Killed
        self.done.append(step)
        if self._dies == (step, "after"):
            raise Killed
        return found

    def prepare(self, switch: Switch) -> Mapping[str, Any]:
        return self._do(Step.PREPARE, token="t")

    def stop_old(self, switch: Switch) -> Mapping[str, Any]:
        return self._do(Step.STOP_OLD, **{OLD_OFFSETS: {"orders": {"0": 5}}})

    def catch_up(self, switch: Switch) -> Mapping[str, Any]:
        return self._do(Step.CATCH_UP)

    def write(self, switch: Switch) -> Mapping[str, Any]:
        assert switch.data["token"] == "t"
        return self._do(Step.WRITE)

    def start_new(self, switch: Switch) -> Mapping[str, Any]:
        return self._do(Step.START_NEW)

    def keep(self, switch: Switch) -> Mapping[str, Any]:
        return self._do(Step.KEEP)

    def undo(self, switch: Switch) -> None:
        self.done.append(Step.DONE)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_switch_that_died_in_a_step_goes_on_with_that_step(registry: Registry, step: Step, when: str) -> None:
    switch = registry.begin_switch("revenue", "promote", 2, Step.PREPARE)
    dying, living = FakeStage((step, when)), FakeStage()
    with pytest.raises(Killed):
        drive(registry, switch, dying)
    left = registry.open_switch("revenue")
    assert left is not None
    assert left.step == step
    is_landed = STEPS.index(step) > STEPS.index(Step.WRITE)
    assert registry.live_version("revenue") == (2 if is_landed else 1)
    ended = drive(registry, left, living)
    assert (ended.outcome, ended.step) == ("done", Step.DONE)
    assert registry.live_version("revenue") == 2
    assert living.done == STEPS[STEPS.index(step) :]


@pytest.mark.parametrize("step", STEPS)
def test_it_can_be_given_up_until_readers_see_the_new_version(registry: Registry, step: Step) -> None:
    switch = registry.begin_switch("revenue", "promote", 2, Step.PREPARE)
    stage = FakeStage((step, "before"))
    with pytest.raises(Killed):
        drive(registry, switch, stage)
    left = registry.open_switch("revenue")
    assert left is not None
    if STEPS.index(step) > STEPS.index(Step.WRITE):
        with pytest.raises(RegistryError, match=r"already see version 2: finish with .*promote revenue.*rollback"):
            abandon(registry, left, stage)
        return
    assert abandon(registry, left, stage).outcome == "abandoned"
    assert stage.done[-1] is Step.DONE
    assert registry.live_version("revenue") == 1
    assert registry.open_switch("revenue") is None
    registry.start_run("revenue", 1, "live")


def test_two_commands_at_one_switch_do_not_both_go_on(registry: Registry) -> None:
    switch = registry.begin_switch("revenue", "promote", 2, Step.PREPARE)

    class Overtaken(FakeStage):
        def stop_old(self, switch: Switch) -> Mapping[str, Any]:
            drive(registry, switch, FakeStage())
            return super().stop_old(switch)

    with pytest.raises(RegistryError, match="another command has continued"):
        drive(registry, switch, Overtaken())
    assert registry.switch(switch.switch_id).outcome == "done"


BEHIND = Position({"orders": {0: 3}}, {"orders": {0: 3}}, is_clean=True)
REACHED = Position({"orders": {0: 5}}, {"orders": {0: 5}}, is_clean=True)
HALF_DONE = Position({"orders": {0: 5}}, {"orders": {0: 9}}, is_clean=False)


@pytest.mark.parametrize(
    ("version", "last_role", "live_version", "step", "at", "expected"),
    [
        # Without a switch: everybody goes on; who was live and is not any more has been taken over from.
        (1, "live", 1, None, REACHED, "run-live"),
        (2, "shadow", 1, None, REACHED, "run-shadow"),
        (1, "live", 2, None, REACHED, "end"),
        (2, "shadow", 2, None, REACHED, "run-live"),
        # The old version.
        (1, "live", 1, Step.PREPARE, REACHED, "run-live"),
        (1, "live", 1, Step.STOP_OLD, REACHED, "wait"),
        (1, "live", 1, Step.STOP_OLD, HALF_DONE, "run-live"),
        (1, "live", 1, Step.CATCH_UP, REACHED, "wait"),
        (1, "live", 1, Step.WRITE, REACHED, "wait"),
        (1, "live", 2, Step.START_NEW, REACHED, "end"),
        (1, "live", 2, Step.KEEP, REACHED, "end"),
        # The new one.
        (2, "shadow", 1, Step.PREPARE, BEHIND, "run-shadow"),
        (2, "shadow", 1, Step.STOP_OLD, BEHIND, "run-shadow"),
        (2, "shadow", 1, Step.CATCH_UP, BEHIND, "run-shadow"),
        (2, "shadow", 1, Step.CATCH_UP, HALF_DONE, "run-shadow"),
        (2, "shadow", 1, Step.CATCH_UP, REACHED, "wait"),
        (2, "shadow", 1, Step.WRITE, REACHED, "wait"),
        (2, "shadow", 2, Step.START_NEW, REACHED, "run-live"),
        (2, "live", 2, Step.KEEP, REACHED, "run-live"),
        # One that has nothing to do with it.
        (3, "shadow", 1, Step.WRITE, REACHED, "run-shadow"),
    ],
)
def test_moves(
    version: int, last_role: Role, live_version: int, step: Step | None, at: Position, expected: Move
) -> None:
    switch = None
    if step is not None:
        data = {OLD_OFFSETS: {"orders": {"0": 5}}}
        switch = Switch(1, "revenue", "promote", 1, 2, step, data, 0, 0, None, None, "user", "host")
    assert next_move(version, last_role, live_version, switch, at) == expected
