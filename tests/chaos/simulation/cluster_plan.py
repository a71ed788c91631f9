"""What a simulated cluster will go through: its settings, its applications, the weather, and each single trouble.

What always holds: a plan is drawn from a seed alone, holds everything that is decided before a run, and survives being
written as JSON; the same plan gives the same run. So a failure can be shrunk by taking things out of its plan, and a
plan can be kept as a test of its own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import permutations
from typing import Any

from simulated_network import Weather
from simulated_store import StoreWeather

BROKERS = (1, 2, 3)

TROUBLES = (
    "kill",
    "kill in write",
    "kill controller",
    "depose controller",
    "stop",
    "pause",
    "cut pair",
    "cut one way",
    "cut off",
    "cut from store",
    "heal",
    "expire session",
    "slow disk",
    "stalled disk",
    "stalled flushes",
    "wrong clock",
    "elect",
    "reassign",
    "alter topic",
    "kill member",
    "pause member",
    "replace copier",
    "full disk",
    "failing disk",
    "repair disks",
    "power cut",
)

START = "start"
"""Not a trouble: brokers that are down are started again, as an operator would."""

UNCLEAN = frozenset(("kill", "kill in write", "failing disk", "full disk", "power cut"))
"""After these a broker may lack what it had: where power is cut, all of them happen to one broker only."""

_MEMBERS_MAX = 3


@dataclass(frozen=True)
class Trouble:
    """One thing that happens. What the numbers mean depends on the kind."""

    at_s: float
    kind: str
    # The broker, or the member of the group, that it happens to, and another one where it takes two.
    node: int = 0
    other: int = 0
    # How long, how slow, how many; and a share between 0 and 1.
    value: float = 0.0
    share: float = 0.0

    def __str__(self) -> str:
        return f"{self.at_s:.2f} s: {self.kind} {self.node} {self.other} {self.value:g} {self.share:.2f}"


@dataclass(frozen=True)
class Plan:
    """A whole run."""

    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    weather: dict[str, float] = field(default_factory=dict)
    store_weather: dict[str, float] = field(default_factory=dict)
    trouble_s: float = 5.0
    # The records that each writer sends.
    writers: tuple[int, ...] = (20,)
    # The protocols of the members of a group.
    members: tuple[str, ...] = ()
    copies: bool = False
    administers: bool = False
    # The broker that alone may lose what it wrote; 0: none.
    victim: int = 0
    troubles: tuple[Trouble, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        given = json.loads(text)
        troubles = tuple(Trouble(**each) for each in given.pop("troubles", ()))
        writers, members = tuple(given.pop("writers", (20,))), tuple(given.pop("members", ()))
        return cls(**given, writers=writers, members=members, troubles=troubles)

    def with_troubles(self, troubles: Iterable[Trouble]) -> Plan:
        return replace(self, troubles=tuple(troubles))


def draw_plan(seed: int) -> Plan:
    """Everything that a seed decides beforehand."""
    rng = random.Random(seed)
    kinds = rng.sample(TROUBLES, rng.randint(1, len(TROUBLES)))
    trouble_s, pause_s = rng.uniform(5.0, 40.0), rng.choice((0.3, 1.0, 4.0))
    has_power_cuts = "power cut" in kinds
    victim = rng.choice(BROKERS) if has_power_cuts else 0
    flushes_each = rng.random() < 0.2
    settings = _draw_settings(rng, may_be_alone=flushes_each or not has_power_cuts, flushes_each=flushes_each)
    if has_power_cuts:
        settings |= _draw_durability(random.Random(f"{seed} durability"))
    return Plan(
        seed=seed,
        settings=settings,
        weather=_draw_weather(rng),
        store_weather=_draw_store_weather(rng),
        trouble_s=trouble_s,
        writers=tuple(rng.choice((20, 60)) for _ in range(rng.randint(1, 3))),
        members=tuple(rng.choice(("classic", "consumer")) for _ in range(rng.randint(0, _MEMBERS_MAX))),
        copies=rng.random() < 0.7,
        administers=rng.random() < 0.4,
        victim=victim,
        troubles=tuple(_draw_troubles(rng, kinds, trouble_s, pause_s, victim)),
    )


def _draw_settings(rng: random.Random, *, may_be_alone: bool, flushes_each: bool) -> dict[str, Any]:
    # What only one broker has is lost with its power, unless it was flushed before it was acknowledged.
    min_isr = rng.choice((1, 2)) if may_be_alone else 2
    drawn = {
        "transaction.state.log.min.isr": min_isr,
        "min.insync.replicas": min_isr,
        "replica.lag.time.max.ms": rng.choice((1_000, 5_000, 30_000)),
        "log.segment.bytes": rng.choice((1 << 30, 2_000)),
    }
    return drawn | ({"log.flush.interval.messages": 1} if flushes_each else {})


def _draw_durability(rng: random.Random) -> dict[str, Any]:
    """What a power cut may take. Drawn apart from the rest, which stays as it was before there was this."""
    choice = rng.random()
    if choice < 0.4:
        # Whoever loses its power is an eligible leader replica (KIP-966) until it registers again. With a lower
        # minimum, somebody else would have to be gone at the same time.
        return {"min.insync.replicas": len(BROKERS)}
    if choice < 0.6:
        # What only one broker has, it has flushed.
        return {"min.insync.replicas": 1, "log.flush.interval.messages": 1}
    return {}


def _draw_weather(rng: random.Random) -> dict[str, float]:
    return {
        "delay_s": rng.choice((0.0005, 0.002, 0.02)),
        "break_share": rng.choice((0.0, 0.0, 0.01)),
        "split_share": rng.choice((0.0, 0.2)),
        "late_share": rng.choice((0.0, 0.0, 0.02)),
    }


def _draw_store_weather(rng: random.Random) -> dict[str, float]:
    return {
        "delay_s": rng.choice((0.001, 0.01)),
        "lost_share": rng.choice((0.0, 0.0, 0.02, 0.1)),
        "stale_share": rng.choice((0.0, 0.2)),
        "watch_delay_s": rng.choice((0.002, 0.2)),
    }


def _draw_troubles(
    rng: random.Random, kinds: list[str], trouble_s: float, pause_s: float, victim: int
) -> Iterable[Trouble]:
    at_s = 0.0
    while at_s < trouble_s:
        at_s += rng.expovariate(1 / pause_s)
        for node in BROKERS:
            if rng.random() < 0.5:
                yield Trouble(at_s, START, node)
        yield _draw_trouble(rng, rng.choice(kinds), at_s, victim)


def _draw_trouble(rng: random.Random, kind: str, at_s: float, victim: int) -> Trouble:
    node = victim if victim and kind in UNCLEAN else rng.choice(BROKERS)
    other = rng.choice([each for each in BROKERS if each != node])
    value = share = 0.0
    match kind:
        case "kill in write":
            value, share = rng.randrange(40), rng.choice((0.0, 0.5, 1.0))
        case "pause" | "pause member" | "replace copier":
            value = rng.choice((0.5, 3.0, 15.0, 40.0) if kind != "pause" else (0.5, 3.0, 15.0))
            node = rng.randrange(_MEMBERS_MAX) if kind == "pause member" else node
        case "kill member":
            node = rng.randrange(_MEMBERS_MAX)
            value = rng.randrange(2)
        case "stalled disk" | "stalled flushes":
            value = rng.choice((0.5, 3.0, 12.0))
        case "slow disk":
            value = rng.choice((1.0, 20.0, 300.0))
        case "wrong clock":
            value = rng.choice((0, -600_000, 600_000))
        case "cut from store":
            share = rng.random()
        case "reassign" | "alter topic":
            # Which of the partitions, or of the topics; which brokers in which order, or which settings.
            other, value = rng.randrange(6), rng.randrange(6)
            share = rng.random()
        case "power cut":
            value = rng.randrange(1 << 30)
    return Trouble(round(at_s, 3), kind, node, other, value, round(share, 3))


def replicas_of(trouble: Trouble, plan: Plan) -> list[int]:
    """The brokers that a reassignment names: never fewer than have to be in sync, or nothing could be written."""
    orders = list(permutations(BROKERS))
    count = max(2 if trouble.share < 0.5 else 3, plan.settings.get("min.insync.replicas", 1))
    return list(orders[int(trouble.value) % len(orders)][:count])


def network_weather(plan: Plan) -> Weather:
    return Weather(**plan.weather)


def store_weather(plan: Plan) -> StoreWeather:
    return StoreWeather(**plan.store_weather)
