"""A fleet of worker processes: who is started again, who is given up, and who ends."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.torture.workers.progress_page import Phase, ProgressPage
from tidelog.torture.workloads import driving
from tidelog.torture.workloads.driving import DrivenWorkload
from tidelog.torture.workloads.fleet import Fleet, Identity, Post
from tidelog.torture.workloads.place import Place, StuckError, WorkloadError

DEADLINE_S = 60.0
# Writes what it is told into a file of its own, until its input ends.
LISTENING = "import sys; open(sys.argv[1], 'w').writelines(iter(sys.stdin.readline, ''))"


def post(name: str, program: str, silence_s: float | None = None) -> Post:
    """A worker that runs this program; its argument is the path of its history."""
    return Post(name, lambda identity: [sys.executable, "-SE", "-c", program, str(identity.history)], silence_s)


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def fleet(tmp_path: Path, notes: list[str]) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, notes.append)
    yield fleet
    fleet.close()


def wait_for(condition: Callable[[], bool], fleet: Fleet) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        fleet.supervise()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_killed_worker_is_started_again_under_another_name_and_told_the_same(
    fleet: Fleet, tmp_path: Path, notes: list[str]
) -> None:
    fleet.start(post("w-0", LISTENING))
    fleet.tell("first")
    assert fleet.kill_one(random.Random(1)) == "w-0"
    wait_for(lambda: fleet.progress().restarts == 1, fleet)
    fleet.tell("second")
    fleet.end()
    assert (tmp_path / "w-0.1.jsonl").read_text() == "first\nsecond\n"
    assert notes == ["w-0 was started again: it was killed"]
    assert fleet.running == []
    assert fleet.kill_one(random.Random(1)) == ""


def test_a_worker_whose_client_failed_for_good_is_started_again(fleet: Fleet, notes: list[str]) -> None:
    fleet.start(
        post("w-0", "import sys; sys.exit('the broker is gone') if sys.argv[1].endswith('1.jsonl') else sys.exit(75)")
    )
    with pytest.raises(WorkloadError, match=r"w-0\.1 ended with code 1.*\n.*the broker is gone"):
        wait_for(lambda: False, fleet)
    assert notes == ["w-0 was started again: its client failed for good: it said nothing"]


def test_a_worker_that_never_gets_anything_done_is_given_up(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.torture.workloads.fleet._RESTART_PAUSE_S", 0.0)
    fleet.start(post("w-0", "import sys; print('no broker', file=sys.stderr); sys.exit(75)"))
    with pytest.raises(WorkloadError, match="failed 10 times without getting anything done") as raised:
        wait_for(lambda: False, fleet)
    assert "no broker" in str(raised.value)


def test_a_silent_worker_of_others_is_started_again(fleet: Fleet, notes: list[str]) -> None:
    fleet.start(post("w-0", LISTENING, silence_s=0.05))
    wait_for(lambda: bool(notes), fleet)
    assert notes == ["w-0 was started again: it had done nothing for 0.05 s"]


def test_a_worker_may_end_only_when_it_was_told_something(fleet: Fleet) -> None:
    fleet.start(post("w-0", "import sys; sys.stdin.readline()"))
    fleet.tell("quiet")
    wait_for(lambda: fleet.are_done(["w-0"]), fleet)
    fleet.start(post("w-1", ""))
    with pytest.raises(WorkloadError, match="w-1 ended with code 0"):
        wait_for(lambda: False, fleet)


def test_what_workers_did_before_they_were_killed_counts(fleet: Fleet, tmp_path: Path) -> None:
    fleet.start(post("w-0", LISTENING))
    page = ProgressPage(tmp_path / "progress" / "w-0")
    page.acknowledged, page.attempted, page.failed, page.read = 5, 9, 4, 2
    page.moved()
    fleet.kill_one(random.Random(1))
    wait_for(lambda: fleet.progress().restarts == 1, fleet)
    page = ProgressPage(tmp_path / "progress" / "w-0.1")
    page.acknowledged = 10
    page.phase = Phase.QUIET
    page.moved()
    found = fleet.progress()
    assert (found.acknowledged, found.attempted, found.failed, found.read) == (15, 9, 4, 2)
    assert fleet.are_in(Phase.QUIET, ["w-0"])


class Idle(DrivenWorkload):
    """One worker that does nothing."""

    name = "idle"
    about = "nothing"
    default_rate = 0.0

    def topics(self) -> dict[str, int]:
        return {self.topic(): 1}

    def add_posts(self) -> None:
        self.add_sender(post("idle-0", LISTENING))


def test_who_is_stuck_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "STUCK_S", 0.1)
    workload = Idle()
    workload._place = Place("127.0.0.1:1", tmp_path)
    workload.start()
    try:
        with pytest.raises(
            StuckError, match=r"the workload idle is stuck: waited for it to end.*idle-0 \(0 sent, 0 read"
        ):
            workload.wait_until(lambda: False, ["idle-0"], "it to end")
    finally:
        workload.close()


def test_a_worker_gets_its_own_files(tmp_path: Path, fleet: Fleet) -> None:
    seen: list[Identity] = []

    def command(identity: Identity) -> list[str]:
        seen.append(identity)
        return [sys.executable, "-SE", "-c", LISTENING, str(identity.history)]

    for name in ("w-0", "w-1"):
        fleet.start(Post(name, command))
    assert [(each.name, each.number, each.history.name) for each in seen] == [
        ("w-0", 1, "w-0.jsonl"),
        ("w-1", 2, "w-1.jsonl"),
    ]
    with pytest.raises(ValueError, match="there is a worker w-0 already"):
        fleet.start(Post("w-0", command))
