"""How a workload is driven from its topics to its last reads; the workloads say what is special about them."""

from __future__ import annotations

import json
import random
import secrets
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, Final

from tidelog.torture.workers import errands, final_reader
from tidelog.torture.workers.final_reader import FinalReaderOrders
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.worker import Orders
from tidelog.torture.workloads.fleet import Fleet, Identity, Post
from tidelog.torture.workloads.place import Notes, Place, Progress, StuckError, WorkloadError

# A workload at its end that gets nothing done for this long is stuck. Far more than any time-out of its clients.
STUCK_S: Final = 120.0
_POLL_S: Final = 0.1
# A look at the offsets of groups waits so long for them; meanwhile, nobody sees to the workers.
_GROUPS_S: Final = 5.0
_ERRAND_S: Final = 150.0
_NAME_BYTES: Final = 3


class ErrandError(WorkloadError):
    """The cluster refused what a workload asked for."""


class DrivenWorkload(ABC):
    """What all workloads have in common."""

    name: ClassVar[str]
    about: ClassVar[str]
    default_rate: ClassVar[float]

    def __init__(self) -> None:
        self.notes = Notes()
        self._run_name = secrets.token_hex(_NAME_BYTES)
        self._place: Place | None = None
        self._fleet: Fleet | None = None
        self._senders: list[str] = []
        self._pollers: list[str] = []
        self._members: list[str] = []
        self._groups: dict[str, str] = {}  # a group's topic, by the group

    # What the workloads say

    @abstractmethod
    def topics(self) -> Mapping[str, int]:
        """The topics and how many partitions each has."""

    @abstractmethod
    def add_posts(self) -> None:
        """Add all posts, by `add_sender` and the like."""

    def topic_configs(self) -> Mapping[str, str]:
        """Settings of the topics beside the usual ones."""
        return {}

    # Names

    def topic(self, suffix: str = "") -> str:
        """A topic's name, which no other run has."""
        return f"torture-{self.name}-{self._run_name}{suffix and '-' + suffix}"

    @property
    def place(self) -> Place:
        if self._place is None:
            raise RuntimeError(f"the workload {self.name} was not prepared")
        return self._place

    @property
    def fleet(self) -> Fleet:
        if self._fleet is None:
            raise RuntimeError(f"the workload {self.name} was not started")
        return self._fleet

    # Posts

    def python_post(self, orders: Orders, module: str) -> Post:
        """A worker in Python; the orders lack what is new each time."""

        def command(identity: Identity) -> list[str]:
            own = replace(
                orders,
                name=identity.name,
                number=identity.number,
                history=str(identity.history),
                progress=str(identity.progress),
            )
            return [*self.place.command_prefix, sys.executable, "-m", module, json.dumps(asdict(own))]

        return Post(orders.name, command)

    def common_orders(self, role: str) -> dict[str, Any]:
        """What every worker is told."""
        return {
            "name": f"{self.name}-{role}",
            "number": 0,
            "bootstrap": self.place.bootstrap,
            "history": "",
            "progress": "",
            "seed": self.place.seed,
        }

    def add_sender(self, post: Post) -> None:
        """A worker that ends when it is told to be quiet."""
        self._senders.append(post.name)
        self.fleet.start(post)

    def add_poller(self, post: Post) -> None:
        """A worker that reads up to the ends that it is told, and then ends."""
        self._pollers.append(post.name)
        self.fleet.start(post)

    def add_member(self, post: Post, group: str = "", topic: str = "") -> None:
        """A worker that goes on until its group has committed the ends of its topic."""
        self._members.append(post.name)
        if group:
            self._groups[group] = topic
        self.fleet.start(post)

    # The run (Workload)

    def prepare(self, place: Place) -> None:
        self._place = place
        self.check_place()
        place.directory.mkdir(parents=True, exist_ok=True)
        self.errand(
            "create",
            topics=dict(self.topics()),
            replication_factor=place.replication_factor,
            configs={"min.insync.replicas": str(place.min_isr), **self.topic_configs()},
        )

    def check_place(self) -> None:
        """Look what can be done here; what can't is in the notes."""
        self.notes = Notes()

    def start(self) -> None:
        self._fleet = Fleet(self.place.directory, self.notes.restarts.append)
        self.add_posts()

    def progress(self) -> Progress:
        return self.fleet.progress() if self._fleet is not None else Progress()

    def supervise(self) -> None:
        self.fleet.supervise()

    def kill_one(self, rng: random.Random) -> str:
        return self.fleet.kill_one(rng)

    def finish(self) -> None:
        stuck: StuckError | None = None
        try:
            self._become_quiet()
            self._drain()
        except StuckError as error:
            stuck = error
        self.fleet.end()
        try:
            self.read_finally()
        except StuckError as error:
            raise (stuck or error) from error
        if stuck is not None:
            raise stuck

    def close(self) -> None:
        if self._fleet is not None:
            self._fleet.close()

    def remove_topics(self) -> None:
        self.errand("delete", topics=list(self.topics()))

    # The end

    def _become_quiet(self) -> None:
        fleet = self.fleet
        fleet.tell("quiet")
        writing = [name for name in self._members if name not in self._senders]
        self.wait_until(
            lambda: fleet.are_done(self._senders) and fleet.are_in(Phase.QUIET, self.writing_members(writing)),
            [*self._senders, *writing],
            "what was being sent to be acknowledged or given up",
        )

    def writing_members(self, members: Sequence[str]) -> Sequence[str]:
        """Those of the members that send records of their own until they are told to be quiet."""
        return ()

    def _drain(self) -> None:
        """Let everybody read what was written."""
        ends: dict[str, int] = self.errand("ends", topics=list(self.topics()))
        self.fleet.tell(f"drain {json.dumps(ends)}", [*self._pollers, *self._members])
        if self._pollers:
            self.wait_until(lambda: self.fleet.are_done(self._pollers), self._pollers, "readers to reach the ends")
        if self._groups:
            self._wait_for_groups(ends)

    def _wait_for_groups(self, ends: Mapping[str, int]) -> None:
        committed: dict[str, dict[str, int]] = {}

        def behind() -> dict[str, list[str]]:
            """For each group, where it is in the partitions whose ends it has not committed."""
            return {
                group: [
                    f"{key}: {committed.get(group, {}).get(key, 0)} of {end}"
                    for key, end in ends.items()
                    if key.rpartition("-")[0] == topic and committed.get(group, {}).get(key, 0) < end
                ]
                for group, topic in self._groups.items()
            }

        def have_come() -> bool:
            try:
                committed.update(self.errand("committed", groups=self._groups, ends=ends, wait_s=_GROUPS_S))
            except ErrandError as error:
                self.notes.restarts.append(f"the offsets of groups could not be read: {error}")
            return not any(behind().values())

        def what() -> str:
            late = (f"group {group} to commit the ends ({', '.join(keys)})" for group, keys in behind().items() if keys)
            return " and ".join(late)

        self.wait_until(have_come, self._members, what, lambda: repr(committed))

    def read_finally(self) -> None:
        """Everything once more, from the beginning: what is committed, and all there is."""
        for suffix, isolation in (("final", "read_committed"), ("final-uncommitted", "read_uncommitted")):
            orders = FinalReaderOrders(**self.common_orders(suffix), topics=tuple(self.topics()), isolation=isolation)
            self.add_last_post(self.python_post(orders, final_reader.__name__))
        self.wait_for_last_posts()

    def add_last_post(self, post: Post) -> None:
        """A worker that ends by itself."""
        self.fleet.start(replace(post, ends_itself=True))

    def wait_for_last_posts(self) -> None:
        names = self.fleet.running
        self.wait_until(lambda: self.fleet.are_done(names), names, "the last readers to reach the ends")
        self.fleet.end(names)

    def wait_until(
        self,
        condition: Callable[[], bool],
        names: Sequence[str],
        what: str | Callable[[], str],
        seen: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait for it as long as any of the workers gets on, or what is `seen` changes."""
        last: object = None
        moved_s = time.monotonic()
        while True:
            self.fleet.supervise()
            if condition():
                return
            now = (self.fleet.moved_ns(names), seen())
            if now != last:
                last, moved_s = now, time.monotonic()
            if time.monotonic() - moved_s > STUCK_S:
                text = what() if callable(what) else what
                raise StuckError(
                    f"the workload {self.name} is stuck: waited for {text}, and nothing moved for {STUCK_S:g} s: "
                    f"{self.fleet.describe(names) or 'all workers have ended'}"
                )
            time.sleep(_POLL_S)

    # Errands

    def errand(self, errand: str, **order: Any) -> Any:
        """Ask something of the cluster, from where the clients are."""
        asked = json.dumps({"errand": errand, "bootstrap": self.place.bootstrap, **order})
        command = [*self.place.command_prefix, sys.executable, "-m", errands.__name__, asked]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_ERRAND_S)
        except subprocess.TimeoutExpired:
            raise ErrandError(f"the workload {self.name} got no answer to {errand!r} within {_ERRAND_S:g} s") from None
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            raise ErrandError(
                f"the workload {self.name} could not {errand!r} at {self.place.bootstrap}: "
                f"{said[-1] if said else f'code {done.returncode}'}"
            )
        return json.loads(done.stdout)
