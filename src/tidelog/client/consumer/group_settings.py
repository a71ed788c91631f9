"""The group part of a consumer's settings, and the assignors that they name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from tidelog.client.consumer.assignors import Assignor, RangeAssignor, RoundRobinAssignor
from tidelog.client.consumer.sticky_assignors import CooperativeStickyAssignor, StickyAssignor
from tidelog.client.errors import ConfigError
from tidelog.common.light_dataclass import dataclass

ASSIGNORS: dict[str, Callable[[], Assignor]] = {
    RangeAssignor.name: RangeAssignor,
    RoundRobinAssignor.name: RoundRobinAssignor,
    StickyAssignor.name: StickyAssignor,
    CooperativeStickyAssignor.name: CooperativeStickyAssignor,
}

# Settings written for the Java client name classes.
_JAVA_NAMES = {
    "org.apache.kafka.clients.consumer.RangeAssignor": RangeAssignor.name,
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": RoundRobinAssignor.name,
    "org.apache.kafka.clients.consumer.StickyAssignor": StickyAssignor.name,
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": CooperativeStickyAssignor.name,
}


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The group part of a consumer's settings; names and defaults are Kafka's."""

    group_id: str
    group_instance_id: str | None = None
    group_protocol: str = "classic"  # or "consumer"
    group_remote_assignor: str | None = None
    partition_assignment_strategy: tuple[object, ...] = ("range", "cooperative-sticky")  # names, or assignor objects
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    isolation_level: str = "read_uncommitted"  # read_committed waits for open transactions when reading offsets
    client_rack: str | None = None


def choose_assignors(strategy: Iterable[object]) -> tuple[Assignor, ...]:
    """The assignors that `partition.assignment.strategy` names or holds; raises ConfigError."""
    assignors: list[Assignor] = []
    for wanted in strategy:
        if isinstance(wanted, str):
            make = ASSIGNORS.get(_JAVA_NAMES.get(wanted, wanted))
            if make is None:
                near = difflib.get_close_matches(wanted, ASSIGNORS, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(
                    f"partition.assignment.strategy: there is no assignor {wanted!r}, but {', '.join(ASSIGNORS)} "
                    f"and your own ones{hint}"
                )
            assignors.append(make())
        else:
            assignors.append(_own(wanted))
    if not assignors:
        raise ConfigError("partition.assignment.strategy names no assignor")
    names = [assignor.name for assignor in assignors]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigError(f"partition.assignment.strategy names {', '.join(doubled)} twice")
    return tuple(assignors)


def _own(wanted: object) -> Assignor:
    made = wanted() if isinstance(wanted, type) else wanted
    if not isinstance(getattr(made, "name", None), str) or not callable(getattr(made, "assign", None)):
        raise ConfigError(
            f"partition.assignment.strategy: {wanted!r} is not an assignor; subclass tidelog's Assignor, "
            "and give it a name and an assign method"
        )
    if not isinstance(made, Assignor):
        raise ConfigError(f"partition.assignment.strategy: {type(made).__name__} has to subclass tidelog's Assignor")
    return made
