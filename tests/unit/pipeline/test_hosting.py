"""The process of a version: its roles through a switch, and its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.pipeline import Json, Pipeline, TopicInput, TopicOutput
from tidelog.pipeline.errors import AlreadyRunningError
from tidelog.pipeline.versions.hosting import Host
from tidelog.pipeline.versions.registry import Registry
from tidelog.pipeline.versions.registry_rows import Role
from tidelog.pipeline.versions.run_lock import RunLock
from tidelog.pipeline.versions.switch_stage import STOP_REASON
from tidelog.pipeline.versions.switching import Step


def _pipeline(version: int) -> Pipeline:
    return Pipeline(
        name="revenue",
        version=version,
        inputs={"orders": TopicInput("orders", format=Json("amount long"))},
        transform=lambda orders: orders,
        outputs=[TopicOutput("revenue", key=["minute"], mode="upsert")],
        output_mode="update",
    )


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry(tmp_path) as opened:
        for version in (1, 2):
            opened.note_version("revenue", version, file="shop.py", source="")
        opened.start_run("revenue", 1, "live")
        yield opened


class FakeRun:
    """Ends at once, after what a test wants to happen meanwhile."""

    def __init__(self, registry: Registry, version: int, role: Role, meanwhile: Callable[[FakeRun], None]) -> None:
        self.run_id: int | None = None
        self.is_asked_to_stop = False
        self._registry, self._version, self.role = registry, version, role
        self._meanwhile = meanwhile

    def run(self) -> None:
        self.run_id = self._registry.start_run("revenue", self._version, self.role)
        self._meanwhile(self)
        self._registry.end_run(self.run_id, "stopped")

    def request_stop(self) -> None:
        self.is_asked_to_stop = True


def _host(registry: Registry, version: int, roles: list[Role], *happenings: Callable[[FakeRun], None]) -> Host:
    waiting = iter(happenings)

    def make(role: Role) -> FakeRun:
        roles.append(role)
        return FakeRun(registry, version, role, next(waiting))

    return Host(registry.state_dir, _pipeline(version), make)


def test_a_shadow_that_is_stopped_for_a_switch_goes_on_as_the_live_one(registry: Registry) -> None:
    roles: list[Role] = []

    def switch(run: FakeRun) -> None:
        opened = registry.begin_switch("revenue", "promote", 2, Step.PREPARE)
        opened = registry.advance_switch(opened, Step.START_NEW, {"old_offsets": {}}, live_version=2)
        assert run.run_id is not None
        registry.request_stop(run.run_id, STOP_REASON)

    _host(registry, 2, roles, switch, lambda run: None).run("shadow")
    assert roles == ["shadow", "live"]


def test_the_old_version_waits_and_ends_when_the_other_has_taken_over(registry: Registry) -> None:
    roles: list[Role] = []
    told: list[str] = []
    opened = registry.begin_switch("revenue", "promote", 2, Step.STOP_OLD)

    def stop(run: FakeRun) -> None:
        assert run.run_id is not None
        registry.request_stop(run.run_id, STOP_REASON)

    host = _host(registry, 1, roles, stop)

    def tell(text: str) -> None:
        told.append(text)
        if text.startswith("waiting"):
            registry.advance_switch(opened, Step.START_NEW, {"old_offsets": {}}, live_version=2)

    host._tell = tell
    host.run("live")
    assert roles == ["live"]
    assert told == ["waiting for the switch from version 1 to 2", "version 2 of revenue has taken over"]


def test_the_old_version_goes_on_when_the_switch_is_given_up(registry: Registry) -> None:
    roles: list[Role] = []
    opened = registry.begin_switch("revenue", "promote", 2, Step.STOP_OLD)

    def stop(run: FakeRun) -> None:
        assert run.run_id is not None
        registry.request_stop(run.run_id, STOP_REASON)

    host = _host(registry, 1, roles, stop, lambda run: None)

    def give_up(text: str) -> None:
        registry.advance_switch(opened, opened.step, outcome="abandoned")

    host._tell = give_up
    host.run("live")
    assert roles == ["live", "live"]


def test_a_run_that_a_user_stopped_ends_the_process(registry: Registry) -> None:
    roles: list[Role] = []

    def stop(run: FakeRun) -> None:
        assert run.run_id is not None
        registry.request_stop(run.run_id, "a user asked for it")

    _host(registry, 2, roles, stop).run("shadow")
    assert roles == ["shadow"]


def test_a_stop_reaches_the_run_and_ends_the_waiting(registry: Registry) -> None:
    roles: list[Role] = []
    runs: list[FakeRun] = []
    began = threading.Event()
    registry.begin_switch("revenue", "promote", 2, Step.STOP_OLD)

    def stop(run: FakeRun) -> None:
        runs.append(run)
        assert run.run_id is not None
        registry.request_stop(run.run_id, STOP_REASON)

    host = _host(registry, 1, roles, stop)
    host._tell = lambda text: began.set()
    thread = threading.Thread(target=host.run, args=("live",))
    thread.start()
    assert began.wait(10)
    host.request_stop()
    thread.join(10)
    assert not thread.is_alive()
    assert roles == ["live"]
    assert not runs[0].is_asked_to_stop


def test_a_second_process_of_a_version_is_refused(registry: Registry) -> None:
    with RunLock(registry.state_dir, "revenue", 2, "host"), pytest.raises(AlreadyRunningError):
        _host(registry, 2, []).run("shadow")
