"""The options of the format `tidelog`: one table for reading and writing, and the code that parses them.

What always holds: options have the same names as in Spark's own `kafka` format, where it has them, and are
case-insensitive; an unknown name or a bad value raises OptionError, which suggests the closest name or says what is
accepted. Options that start with `kafka.` are client settings by their Kafka names; those that the source or the sink
controls are rejected with the reason. This module doesn't act on options; the code that uses them does.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.common.settings import nearest_name

logger = logging.getLogger(__name__)

KAFKA_PREFIX = "kafka."


class OptionError(ValueError):
    """An option is unknown, missing or invalid; the message says what would be valid."""


class Use(enum.Enum):
    """What a DataFrame is used for."""

    BATCH_READ = "batch read"
    STREAM_READ = "stream read"
    BATCH_WRITE = "batch write"
    STREAM_WRITE = "stream write"

    @property
    def is_read(self) -> bool:
        return self in READS


READS = frozenset({Use.BATCH_READ, Use.STREAM_READ})
WRITES = frozenset({Use.BATCH_WRITE, Use.STREAM_WRITE})
STREAM_READS = frozenset({Use.STREAM_READ})
BATCH_READS = frozenset({Use.BATCH_READ})
BATCH_WRITES = frozenset({Use.BATCH_WRITE})
EVERYWHERE = READS | WRITES


class Kind(enum.Enum):
    """How the text of an option is parsed; the value is its name in the documentation."""

    STRING = "text"
    INT = "integer"
    BOOLEAN = "true or false"
    MILLISECONDS = "milliseconds"
    DURATION = "duration, such as 30s or 15m; a plain number is in milliseconds"
    BYTES = "bytes, such as 1048576 or 64m"
    JSON = "JSON"


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table."""

    name: str
    kind: Kind
    help: str
    uses: frozenset[Use]
    default: str | None = None  # as text, also for the documentation; None: no default
    at_least: int | None = None
    choices: tuple[str, ...] = ()
    # If other uses must reject the option instead of ignoring it: the reason.
    refused_elsewhere: str | None = None

    def parse(self, text: str) -> Any:
        try:
            value = _PARSERS[self.kind](text.strip())
        except ValueError:
            raise OptionError(f"option {self.name}={text!r}: expected {self.kind.value}") from None
        if self.at_least is not None and value < self.at_least:
            raise OptionError(f"option {self.name}={text!r}: expected {self.at_least} or more")
        if self.choices:
            value = value.lower()
            if value not in self.choices:
                raise OptionError(f"option {self.name}={text!r}: expected {' or '.join(self.choices)}")
        return value


_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}
_NUMBER_AND_UNIT = re.compile(r"(-?\d+)\s*([a-z]*)", re.IGNORECASE)
_BOOLEANS = {"true": True, "false": False}


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


def _with_unit(text: str, units: Mapping[str, int]) -> int:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise ValueError(text)
    return int(match[1]) * units[match[2].lower()]


_PARSERS: Mapping[Kind, Callable[[str], Any]] = {
    Kind.STRING: str,
    Kind.INT: int,
    Kind.BOOLEAN: _boolean,
    Kind.MILLISECONDS: int,
    Kind.DURATION: lambda text: _with_unit(text, _UNITS_MS),
    Kind.BYTES: lambda text: _with_unit(text, _UNITS_BYTES),
    Kind.JSON: str,
}

# An ending offset makes no sense for a query that runs forever.
_ENDLESS = "a streaming query has no end; stop it, or use Trigger.AvailableNow to process what is available and stop"

SOURCE_OPTIONS: tuple[Option, ...] = (
    Option("subscribe", Kind.STRING, "The topics to read, comma-separated.", READS),
    Option(
        "subscribePattern",
        Kind.STRING,
        "A regular expression. Every topic whose whole name matches is read, including topics created later.",
        READS,
    ),
    Option(
        "assign",
        Kind.JSON,
        'The partitions to read, such as `{"topicA":[0,1],"topicB":[2]}`. Set exactly one of subscribe, '
        "subscribePattern and assign.",
        READS,
    ),
    Option(
        "startingOffsets",
        Kind.STRING,
        'Where a batch or a new query starts: earliest, latest (streams only), `{"topicA":{"0":23,"1":-2}}` with -2 '
        "for the earliest and -1 for the latest, or group:ID for the committed offsets of that group (the earliest if "
        "it has none). A restarted query resumes from its checkpoint, and new partitions start at the earliest. "
        "Default: earliest in batches, latest in streams.",
        READS,
    ),
    Option(
        "endingOffsets",
        Kind.STRING,
        "Where a batch ends (exclusive): latest, or JSON as for startingOffsets, with -1 for the latest.",
        BATCH_READS,
        default="latest",
        refused_elsewhere=_ENDLESS,
    ),
    Option(
        "startingTimestamp",
        Kind.MILLISECONDS,
        "Start each partition at the first record with this timestamp or later, in milliseconds since 1970. Takes "
        "precedence over startingOffsetsByTimestamp, which takes precedence over startingOffsets.",
        READS,
    ),
    Option(
        "endingTimestamp",
        Kind.MILLISECONDS,
        "End each partition at the first record with this timestamp or later, or at the latest offset if there is no "
        "such record.",
        BATCH_READS,
        refused_elsewhere=_ENDLESS,
    ),
    Option(
        "startingOffsetsByTimestamp",
        Kind.JSON,
        'Like startingTimestamp, but per partition: `{"topicA":{"0":1700000000000,"1":1700000000000}}`.',
        READS,
    ),
    Option(
        "endingOffsetsByTimestamp",
        Kind.JSON,
        "Like endingTimestamp, but per partition.",
        BATCH_READS,
        refused_elsewhere=_ENDLESS,
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        Kind.STRING,
        "What to do if a partition has no record at or after the starting timestamp: fail (error), or start at the "
        "latest offset (latest).",
        READS,
        default="error",
        choices=("error", "latest"),
    ),
    Option(
        "maxOffsetsPerTrigger",
        Kind.INT,
        "The maximum number of offsets per micro-batch, divided among partitions in proportion to their backlog.",
        STREAM_READS,
        at_least=1,
    ),
    Option(
        "minOffsetsPerTrigger",
        Kind.INT,
        "A micro-batch waits until this many offsets are available, but no longer than maxTriggerDelay.",
        STREAM_READS,
        at_least=1,
    ),
    Option(
        "maxTriggerDelay",
        Kind.DURATION,
        "How long minOffsetsPerTrigger may delay a micro-batch.",
        STREAM_READS,
        default="15m",
        at_least=0,
    ),
    Option(
        "maxBytesPerTrigger",
        Kind.BYTES,
        "The approximate size of a micro-batch in bytes, as stored by the broker; estimated from the average size of "
        "an offset in each partition.",
        STREAM_READS,
        at_least=1,
    ),
    Option(
        "maxOffsetsPerTriggerFile",
        Kind.STRING,
        "A file on the driver that contains the maximum number of offsets per micro-batch. It is read before every "
        "micro-batch. 0 pauses the query (with Trigger.AvailableNow, it means 1); if the file is missing or empty, "
        "there is no limit.",
        STREAM_READS,
    ),
    Option(
        "minPartitions",
        Kind.INT,
        "The approximate minimum number of tasks. If there are fewer partitions, large ones are split.",
        READS,
        at_least=1,
    ),
    Option(
        "maxRecordsPerPartition",
        Kind.INT,
        "The maximum number of offsets per task. Larger ranges are split, and order is kept within a split. With the "
        "default, a single large partition keeps all cores of a cluster busy.",
        READS,
        default="1000000",
        at_least=1,
    ),
    Option(
        "failOnDataLoss",
        Kind.BOOLEAN,
        "Whether to fail if records are gone before they were read, because they or their topic were deleted. If "
        "false, log a warning and continue with the remaining records.",
        READS,
        default="true",
    ),
    Option("includeHeaders", Kind.BOOLEAN, "Whether to add a column with the record headers.", READS, default="false"),
    Option(
        "group.id",
        Kind.STRING,
        "The group under which the query publishes its offsets, so that lag tools can see its progress. It doesn't "
        "affect where a query resumes: that is always its checkpoint. `kafka.group.id` means the same.",
        STREAM_READS,
    ),
    Option(
        "groupIdPrefix",
        Kind.STRING,
        "Accepted for compatibility with Spark's own format. It has no effect, because no group ids are generated.",
        READS,
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        Kind.MILLISECONDS,
        "How long a task waits for the next records of its range before it fails.",
        READS,
        default="120000",
        at_least=1,
    ),
    Option(
        "fetchOffset.numRetries",
        Kind.INT,
        "How many times the driver retries if it can't get offsets, or gets offsets lower than those already read.",
        READS,
        default="3",
        at_least=0,
    ),
    Option(
        "fetchOffset.retryIntervalMs",
        Kind.MILLISECONDS,
        "The pause before each retry.",
        READS,
        default="10",
        at_least=0,
    ),
    Option(
        "partition.metadata.cache.ttl.ms",
        Kind.MILLISECONDS,
        "How long the driver of a stream caches the list of topics and partitions; -1: it is fetched every time.",
        STREAM_READS,
        default="1000",
        at_least=-1,
    ),
)

SINK_OPTIONS: tuple[Option, ...] = (
    Option("topic", Kind.STRING, "The topic for all rows; takes precedence over the topic column.", WRITES),
    Option(
        "delivery",
        Kind.STRING,
        "exactly-once: each row becomes visible to `read_committed` consumers once, regardless of retries and crashes. "
        "at-least-once: rows are visible immediately, and appear again after a retry. Default: exactly-once in "
        "streams, inside foreachBatch and with txnAppId; at-least-once in other batch writes.",
        WRITES,
        choices=("exactly-once", "at-least-once"),
    ),
    Option(
        "txnAppId",
        Kind.STRING,
        "The application that txnVersion belongs to. A version of an application is written only once; writing it "
        "again has no effect. Default inside foreachBatch: the query id.",
        BATCH_WRITES,
    ),
    Option(
        "txnVersion",
        Kind.INT,
        "The version of the application's data; versions must increase. Default inside foreachBatch: the batch id.",
        BATCH_WRITES,
        at_least=0,
    ),
    Option(
        "transactionalIdPrefix",
        Kind.STRING,
        "The prefix of the transactional ids and the group used by exactly-once writes, for access rules.",
        WRITES,
        default="tidelog-spark",
    ),
    Option(
        "topicTimeoutMs",
        Kind.MILLISECONDS,
        "How long a task waits for a topic to exist before it fails.",
        WRITES,
        default="10000",
        at_least=0,
    ),
)

OPTIONS: Mapping[str, Option] = {option.name.lower(): option for option in (*SOURCE_OPTIONS, *SINK_OPTIONS)}

# Spark passes these to every source and sink, or they concern other parts of Spark.
_NOT_OURS = frozenset(
    {"path", "paths", "checkpointlocation", "queryname", "mergeschema", "outputmode", "header", "inferschema"}
)

# Client settings that the source controls, and why.
_OWNED_BY_SOURCE: Mapping[str, str] = {
    "auto.offset.reset": "set startingOffsets to choose where a new query starts; a restarted query resumes from its "
    "checkpoint",
    "key.deserializer": "keys are bytes; cast or parse the column key",
    "value.deserializer": "values are bytes; cast or parse the column value, or declare it as a string in schema()",
    "enable.auto.commit": "Spark decides when a batch is done; set group.id to publish its offsets",
    "interceptor.classes": "records are passed to Spark without creating Python objects, so interceptors can't see "
    "them",
    "group.instance.id": "a query is not a member of its group; it only publishes its offsets there",
    "group.protocol": "a query is not a member of its group; it only publishes its offsets there",
}

# Client settings that the sink controls, and why.
_OWNED_BY_SINK: Mapping[str, str] = {
    "transactional.id": "every attempt of a task has its own; set transactionalIdPrefix to change how they start",
    "key.serializer": "keys are bytes or text; convert them with to_json, to_avro or a cast",
    "value.serializer": "values are bytes or text; convert them with to_json, to_avro or a cast",
    "interceptor.classes": "rows are written without creating Python objects, so interceptors can't see them",
    "partitioner.class": "the key decides, as in Java's clients; to choose partitions yourself, add a column partition",
}


@dataclass(frozen=True)
class Options:
    """The parsed options of one read or write; names are spelled as in the table."""

    use: Use
    values: Mapping[str, Any] = field(default_factory=dict)
    kafka: Mapping[str, str] = field(default_factory=dict)  # client settings, without the prefix

    def get(self, name: str) -> Any:
        """The value set by the user, or the default, or None. The name must be in the table."""
        row = OPTIONS[name.lower()]
        if row.name in self.values:
            return self.values[row.name]
        return None if row.default is None else row.parse(row.default)

    def is_given(self, name: str) -> bool:
        return OPTIONS[name.lower()].name in self.values


def read_options(given: Mapping[str, str], use: Use) -> Options:
    """Parse the options set by the user; raises OptionError if one is invalid."""
    values: dict[str, Any] = {}
    kafka: dict[str, str] = {}
    for name, text in given.items():
        lower = name.lower()
        if lower.startswith(KAFKA_PREFIX):
            kafka[lower.removeprefix(KAFKA_PREFIX)] = text
            continue
        if lower in _NOT_OURS:
            continue
        row = OPTIONS.get(lower)
        if row is None:
            raise OptionError(_unknown(name, use))
        if use in row.uses:
            values[row.name] = row.parse(text)
        elif row.refused_elsewhere is not None and use.is_read:
            raise OptionError(f"option {row.name} can't be used in a {use.value}: {row.refused_elsewhere}")
        elif use.is_read and row.uses & READS:
            logger.warning("option %s has no effect in a %s", row.name, use.value)
    if use.is_read:
        _refuse(kafka, _OWNED_BY_SOURCE, "source")
    else:
        _refuse(kafka, _OWNED_BY_SINK, "sink")
    if not kafka.get("bootstrap.servers", "").strip():
        raise OptionError("option kafka.bootstrap.servers is missing; set it to addresses such as 127.0.0.1:9092")
    return Options(use, values, kafka)


def option_of(given: Mapping[str, str], name: str) -> Any:
    """The value of one option, without checking the others."""
    row = OPTIONS[name.lower()]
    text = next((text for key, text in given.items() if key.lower() == row.name.lower()), row.default)
    return None if text is None else row.parse(text)


def _refuse(kafka: Iterable[str], owned: Mapping[str, str], owner: str) -> None:
    for name in kafka:
        if name in owned:
            raise OptionError(f"option {KAFKA_PREFIX}{name} is controlled by the {owner}: {owned[name]}")


def _unknown(name: str, use: Use) -> str:
    usable = [row.name for row in OPTIONS.values() if use in row.uses]
    near = nearest_name(name, usable) or nearest_name(name.lower(), [each.lower() for each in usable])
    if near is not None:
        near = OPTIONS[near.lower()].name
        return f"format tidelog has no option {name!r} in a {use.value}; did you mean {near!r}?"
    return (
        f"format tidelog has no option {name!r} in a {use.value}; client settings start with {KAFKA_PREFIX!r}, and "
        f"the other options are: {', '.join(sorted(usable))}"
    )
