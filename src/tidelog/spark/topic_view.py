"""What the driver knows about the topics of a query: which partitions exist, and where they start and end.

What always holds: the list of topics is fetched at most once within the age that the caller allows; offsets are fetched
for all partitions at once, so checking an idle topic costs one round trip to each leader. Errors name what is missing.
If no broker can be reached when the query starts, the client's error is raised immediately.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import re2

from tidelog.client.admin import Admin
from tidelog.client.admin.types import IsolationLevel
from tidelog.client.errors import BrokerError, ClientError, ConnectError
from tidelog.client.types import TopicMetadata, TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.spark import client_settings
from tidelog.spark.errors import SourceError
from tidelog.spark.offsets import EARLIEST, LATEST, Bound, Offsets, check_named, parse_partitions
from tidelog.spark.options import OptionError, Options

logger = logging.getLogger(__name__)

T = TypeVar("T")
_NEVER_S = 1e9  # longer ago than any allowed age
_PATIENCE_S = 60.0  # for a cluster that could be reached before; brokers restart in less
_PAUSE_MAX_S = 1.0
_HOW_MANY = ("assign", "subscribe", "subscribePattern")


class TopicView:
    """The topics selected by the options, as the cluster reports them."""

    def __init__(self, options: Options) -> None:
        given = [name for name in _HOW_MANY if options.is_given(name)]
        if len(given) != 1:
            which = "none of them is" if not given else f"{' and '.join(given)} are"
            raise OptionError(f"set exactly one of the options {', '.join(_HOW_MANY)}; {which} set")
        self._options = options
        self._assigned = parse_partitions("assign", options.get("assign")) if given == ["assign"] else frozenset()
        self._names = _names(options.get("subscribe")) if given == ["subscribe"] else frozenset()
        self._matches = _matcher(options.get("subscribePattern")) if given == ["subscribePattern"] else None
        self._isolation_level: IsolationLevel = client_settings.isolation_level(options)
        self._settings = client_settings.for_driver(options)
        self._admin: Admin | None = None
        self._topics: dict[str, TopicMetadata] = {}
        self._asked_at_s = -_NEVER_S
        self._was_reached = False

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self._settings)
        return self._admin

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    # Topics

    def refresh(self, *, age_max_s: float = 0.0) -> None:
        """Fetch the list of topics, unless it is younger than `age_max_s`."""
        if time.monotonic() - self._asked_at_s < age_max_s:
            return
        told = self._retried(self._ask_topics)
        self._topics = {topic.name: topic for topic in told}
        self._asked_at_s = time.monotonic()

    def _ask_topics(self) -> list[TopicMetadata]:
        if self._matches is not None:
            return [topic for topic in self.admin.list_topics() if self._matches(topic.name)]
        names = self._names or {topic for topic, _ in self._assigned}
        found = self.admin.describe_topics(sorted(names))
        for error in found.errors.values():
            if not _is_gone(error):
                raise error
        return list(found.succeeded.values())

    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions to read that currently exist."""
        there = {
            TopicPartition(topic.name, row.partition) for topic in self._topics.values() for row in topic.partitions
        }
        return frozenset(there & self._assigned if self._assigned else there)

    def topic_ids(self) -> dict[str, uuid.UUID]:
        return {name: topic.topic_id for name, topic in self._topics.items()}

    def require_all(self) -> None:
        """Raise SourceError if a topic or partition named in the options doesn't exist."""
        missing = sorted(self._names - self._topics.keys())
        if missing:
            raise SourceError(f"there is no topic {', '.join(missing)}; create it first, or correct subscribe")
        absent = sorted(self._assigned - self.partitions())
        if absent:
            listed = ", ".join(str(each) for each in absent)
            raise SourceError(f"there is no partition {listed}; create it first, or correct assign")

    # Offsets

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first available offsets. Here and below, partitions deleted in the meantime are left out."""
        return self._ends(partitions, EARLIEST)

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The offsets after the last record that can be read now."""
        return self._ends(partitions, LATEST)

    def _ends(self, partitions: Iterable[TopicPartition], end: int) -> Offsets:
        return self._list(dict.fromkeys(partitions, end))

    def at_times(self, timestamps: Mapping[TopicPartition, int]) -> Offsets:
        """The first offset at or after each timestamp; -1 if no record is that recent."""
        return self._list(timestamps)

    def _list(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        if not wanted:
            return {}

        def ask() -> Offsets:
            found = self.admin.list_offsets(wanted, isolation_level=self._isolation_level)
            for error in found.errors.values():
                if not _is_gone(error):
                    raise error
                self._asked_at_s = -_NEVER_S  # the list of topics is out of date
            return {key: row.offset for key, row in found.succeeded.items()}

        return self._retried(ask)

    def committed(self, group_id: str, partitions: Iterable[TopicPartition]) -> Offsets:
        """The committed offsets of a group, for partitions that have one."""
        wanted = list(partitions)

        def ask() -> Offsets:
            found = self.admin.list_consumer_group_offsets({group_id: wanted})
            return {key: row.offset for key, row in found[group_id].items()}

        return self._retried(ask) if wanted else {}

    def offset_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        """The average number of bytes on disk per offset, for each partition."""
        wanted = list(partitions)
        sizes: dict[TopicPartition, int] = {}
        for dirs in self.admin.describe_log_dirs(partitions=wanted).raise_for_errors().values():
            for each in dirs:
                for replica in each.replicas:
                    key = replica.topic_partition
                    sizes[key] = max(sizes.get(key, 0), replica.size_bytes)
        first, last = self.earliest(wanted), self.latest(wanted)
        return {key: size / max(last[key] - first[key], 1) for key, size in sizes.items() if key in last}

    def _retried(self, ask: Callable[[], T]) -> T:
        """Retry a few times; for longer if no broker can be reached now but one could be before."""
        retries: int = self._options.get("fetchOffset.numRetries")
        pause_s: float = self._options.get("fetchOffset.retryIntervalMs") / 1000
        patient_until_s = time.monotonic() + (_PATIENCE_S if self._was_reached else 0.0)
        while True:
            try:
                answer = ask()
            except ClientError as error:
                if isinstance(error, ConnectError):
                    if time.monotonic() >= patient_until_s:
                        raise
                    pause_s = min(max(2 * pause_s, 0.05), _PAUSE_MAX_S)
                elif not retries:
                    raise
                else:
                    retries -= 1
                logger.warning("could not get topics and offsets, retrying: %s", error)
                time.sleep(pause_s)
            else:
                self._was_reached = True
                return answer

    # Bounds

    def resolve(self, bound: Bound, *, latest: Mapping[TopicPartition, int] | None = None) -> Offsets:
        """Resolve a bound to offsets, using `latest` for the latest offsets if given."""
        partitions = self.partitions()
        check_named(bound, partitions)
        if bound.group_id is not None:
            wanted = self.committed(bound.group_id, partitions)
            wanted = {key: wanted.get(key, EARLIEST) for key in partitions}
        elif bound.timestamp is not None or bound.timestamps:
            wanted = self._resolve_times(bound, partitions)
        elif bound.offsets:
            wanted = dict(bound.offsets)
        else:
            assert bound.everywhere is not None
            wanted = dict.fromkeys(partitions, bound.everywhere)
        at_start = self.earliest(key for key, offset in wanted.items() if offset == EARLIEST)
        at_end = [key for key, offset in wanted.items() if offset == LATEST]
        ends = self.latest(at_end) if latest is None else {key: latest[key] for key in at_end if key in latest}
        return {**wanted, **at_start, **ends}

    def _resolve_times(self, bound: Bound, partitions: Iterable[TopicPartition]) -> Offsets:
        times = bound.timestamps or dict.fromkeys(partitions, bound.timestamp or 0)
        found = self.at_times(times)
        for key, offset in found.items():
            if offset < 0 and not bound.is_latest_if_none:
                raise SourceError(
                    f"partition {key} has no record at or after {times[key]} (option {bound.option}); set "
                    "startingOffsetsByTimestampStrategy to latest to start at its end"
                )
        return {key: offset if offset >= 0 else LATEST for key, offset in found.items()}


def _is_gone(error: ClientError) -> bool:
    return isinstance(error, BrokerError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _names(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise OptionError(f"option subscribe={text!r} lists no topics")
    return names


def _matcher(text: str) -> Callable[[str], object]:
    """Whether a whole name matches. RE2 never hangs; Python's engine handles what RE2 lacks, such as look-ahead."""
    if not text:
        raise OptionError("option subscribePattern is empty")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(text, options)
    except re2.error:
        try:
            return re.compile(text).fullmatch
        except re.error as error:
            raise OptionError(f"option subscribePattern={text!r} is not a regular expression: {error}") from error
    matches: Callable[[str], object] = compiled.fullmatch
    return matches
