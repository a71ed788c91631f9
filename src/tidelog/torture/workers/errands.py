"""Errands: what a workload has to ask of the cluster, done by a process that runs where its clients do.

`python -m tidelog.torture.workers.errands '{"errand": ..., ...}'` prints its result as a line of JSON, or fails with a
line on standard error. Temporary failures are retried for as long as the errand may take.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from tidelog.client.admin import Admin, NewTopic, OffsetSpec
from tidelog.client.errors import BrokerError, ClientError, RetriableError
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.torture.workers.worker import REQUEST_TIMEOUT_MS

T = TypeVar("T")

_ERRAND_S: Final = 90.0
_PAUSE_S: Final = 0.3
_REFUSED: Final = 1


def again_and_again(call: Callable[[], T], patience_s: float = _ERRAND_S) -> T:
    """Retry what is only a temporary failure."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except RetriableError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)


def create_topics(
    admin: Admin, topics: Mapping[str, int], replication_factor: int, configs: Mapping[str, str | None]
) -> None:
    """Create topics with so many partitions each, and wait until they have leaders."""
    wanted = [
        NewTopic(name, partitions=count, replication_factor=replication_factor, configs=configs)
        for name, count in topics.items()
    ]

    def create() -> None:
        for error in admin.create_topics(wanted).errors.values():
            # An attempt whose response was lost may have created it.
            if not (isinstance(error, BrokerError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                raise error

    again_and_again(create)
    again_and_again(lambda: admin.wait_for_topics(list(topics)))


def delete_topics(admin: Admin, topics: Sequence[str]) -> None:
    """Delete those of them that exist."""

    def delete() -> None:
        for error in admin.delete_topics(topics).errors.values():
            if not (isinstance(error, BrokerError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise error

    again_and_again(delete)


def partitions_of(admin: Admin, topics: Iterable[str]) -> list[TopicPartition]:
    """All partitions of these topics."""

    def describe() -> list[TopicPartition]:
        found = admin.describe_topics(list(topics))
        found.raise_for_errors()
        return [TopicPartition(name, each.partition) for name in found for each in found[name].partitions]

    return again_and_again(describe)


def offsets_of(admin: Admin, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[str, int]:
    """The first offsets, or the high watermarks, by the partitions' names."""

    def ask() -> dict[str, int]:
        found = admin.list_offsets(dict.fromkeys(partitions, spec))
        found.raise_for_errors()
        return {str(partition): found[partition].offset for partition in partitions}

    return again_and_again(ask)


def committed_of(
    admin: Admin, groups: Mapping[str, str], ends: Mapping[str, int], wait_s: float
) -> dict[str, dict[str, int]]:
    """What each of these groups has committed of its topic; waits so long for all of them to be at the ends.

    A partition without a commit, or with one in a transaction that is open, is left out.
    """
    wanted = {
        group: [_partition(key) for key in ends if key.rpartition("-")[0] == topic] for group, topic in groups.items()
    }
    deadline_s = time.monotonic() + wait_s
    while True:
        found = again_and_again(lambda: admin.list_consumer_group_offsets(wanted, require_stable=True))
        committed: dict[str, dict[str, int]] = {group: {} for group in groups}
        for group in groups:
            if group not in found.errors:
                committed[group] = {str(partition): stored.offset for partition, stored in found[group].items()}
            elif not isinstance(found.errors[group], RetriableError):
                raise found.errors[group]
        are_there = all(
            committed[group].get(str(partition), 0) >= ends[str(partition)]
            for group, partitions in wanted.items()
            for partition in partitions
        )
        if are_there or time.monotonic() > deadline_s:
            return committed
        time.sleep(_PAUSE_S)


def _partition(key: str) -> TopicPartition:
    topic, _, number = key.rpartition("-")
    return TopicPartition(topic, int(number))


def run(order: Mapping[str, Any]) -> Any:
    """Do an errand; returns what is to be printed."""
    with Admin(bootstrap_servers=order["bootstrap"], request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
        if order["errand"] == "features":
            return {name: level.max_version for name, level in admin.describe_features().finalized.items()}
        if order["errand"] == "committed":
            return committed_of(admin, order["groups"], order["ends"], order["wait_s"])
        topics = order["topics"]
        if order["errand"] == "create":
            return create_topics(admin, topics, order["replication_factor"], order["configs"])
        if order["errand"] == "delete":
            return delete_topics(admin, topics)
        if order["errand"] == "ends":
            return offsets_of(admin, partitions_of(admin, topics), OffsetSpec.LATEST)
        raise ValueError(f"there is no errand {order['errand']!r}")


def main() -> int:
    try:
        result = run(json.loads(sys.argv[1]))
    except ClientError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return _REFUSED
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
