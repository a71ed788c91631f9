"""The options of the format `tidelog`: one table for reading and writing, and how options are read.

What always holds: names are those of Spark's own `kafka` format where it has the option, in any case of letters; an
unknown name or a bad value raises OptionError, which names the nearest right name or what would be accepted. Options
that begin with `kafka.` are settings of the client by their Kafka names; those that the source or the sink must decide
itself are refused with the reason. What an option means is decided by whoever asks for it, not here.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.common.settings import nearest_name

log = logging.getLogger(__name__)

KAFKA_PREFIX = "kafka."


class OptionError(ValueError):
    """An option is unknown, missing, or has a value that can't be used; the text says which would be right."""


class Use(enum.Enum):
    """What a DataFrame is made for."""

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
    """How the text of an option is read; the value is what documentation calls it."""

    STRING = "text"
    INT = "whole number"
    BOOLEAN = "true or false"
    MILLISECONDS = "milliseconds"
    DURATION = "time, as 30s or 15m; a bare number is milliseconds"
    BYTES = "bytes, as 1048576 or 64m"
    JSON = "JSON"


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table."""

    name: str
    kind: Kind
    help: str
    uses: frozenset[Use]
    default: str | None = None  # as text, for the page too; None: nothing
    at_least: int | None = None
    choices: tuple[str, ...] = ()
    # Set where another use must not pass over it in silence: why it can't be given there.
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

# Ending anywhere makes no sense for a query that goes on for ever.
_ENDLESS = "a streaming query has no end; stop it, or use Trigger.AvailableNow to end at what is there now"

SOURCE_OPTIONS: tuple[Option, ...] = (
    Option("subscribe", Kind.STRING, "The topics to read, with commas between them.", READS),
    Option(
        "subscribePattern",
        Kind.STRING,
        "A regular expression: every topic whose whole name it matches is read, also those that are made later.",
        READS,
    ),
    Option(
        "assign",
        Kind.JSON,
        'The partitions to read, as `{"topicA":[0,1],"topicB":[2]}`. Exactly one of subscribe, subscribePattern and '
        "assign is given.",
        READS,
    ),
    Option(
        "startingOffsets",
        Kind.STRING,
        'Where a batch, or a new query, begins: earliest, latest (streams only), `{"topicA":{"0":23,"1":-2}}` with -2 '
        "for the earliest and -1 for the latest, or group:ID for what that group has committed (the earliest where it "
        "has not). A query that is restarted goes on from its checkpoint, and partitions that are added begin at the "
        "earliest. Default: earliest in batches, latest in streams.",
        READS,
    ),
    Option(
        "endingOffsets",
        Kind.STRING,
        "Where a batch ends (the offset is not read any more): latest, or JSON as for startingOffsets, with -1 for the "
        "latest.",
        BATCH_READS,
        default="latest",
        refused_elsewhere=_ENDLESS,
    ),
    Option(
        "startingTimestamp",
        Kind.MILLISECONDS,
        "Begin every partition at the first record of this time or later, in milliseconds since 1970. Goes before "
        "startingOffsetsByTimestamp, which goes before startingOffsets.",
        READS,
    ),
    Option(
        "endingTimestamp",
        Kind.MILLISECONDS,
        "End every partition at the first record of this time or later; at the latest where there is none.",
        BATCH_READS,
        refused_elsewhere=_ENDLESS,
    ),
    Option(
        "startingOffsetsByTimestamp",
        Kind.JSON,
        'As startingTimestamp, by partition: `{"topicA":{"0":1700000000000,"1":1700000000000}}`.',
        READS,
    ),
    Option(
        "endingOffsetsByTimestamp",
        Kind.JSON,
        "As endingTimestamp, by partition.",
        BATCH_READS,
        refused_elsewhere=_ENDLESS,
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        Kind.STRING,
        "What to do where no record is as young as the starting time: fail with error, or begin at the latest.",
        READS,
        default="error",
        choices=("error", "latest"),
    ),
    Option(
        "maxOffsetsPerTrigger",
        Kind.INT,
        "How many offsets a micro-batch covers at most; shared out by how much each partition has waiting.",
        STREAM_READS,
        at_least=1,
    ),
    Option(
        "minOffsetsPerTrigger",
        Kind.INT,
        "A micro-batch waits until so many offsets are there, but not longer than maxTriggerDelay.",
        STREAM_READS,
        at_least=1,
    ),
    Option(
        "maxTriggerDelay",
        Kind.DURATION,
        "How long minOffsetsPerTrigger may hold up a micro-batch.",
        STREAM_READS,
        default="15m",
        at_least=0,
    ),
    Option(
        "maxBytesPerTrigger",
        Kind.BYTES,
        "About how many bytes, as the broker stores them, a micro-batch covers; estimated from the average size of "
        "what each partition holds.",
        STREAM_READS,
        at_least=1,
    ),
    Option(
        "maxOffsetsPerTriggerFile",
        Kind.STRING,
        "A file on the driver with a whole number that is read before every micro-batch: how many offsets it covers "
        "at most. 0: none for now (with Trigger.AvailableNow, one); a file that is missing or empty: no limit.",
        STREAM_READS,
    ),
    Option(
        "minPartitions",
        Kind.INT,
        "About how many tasks to read with, if there are fewer partitions: large ones are split.",
        READS,
        at_least=1,
    ),
    Option(
        "maxRecordsPerPartition",
        Kind.INT,
        "How many offsets a task reads at most: larger ranges are split, and order holds within a split. The default "
        "keeps all cores of a cluster busy with one large partition.",
        READS,
        default="1000000",
        at_least=1,
    ),
    Option(
        "failOnDataLoss",
        Kind.BOOLEAN,
        "Whether to fail when records are gone before they were read, because they were deleted or their topic was; "
        "false: go on with what is left and log a warning.",
        READS,
        default="true",
    ),
    Option(
        "includeHeaders", Kind.BOOLEAN, "Whether there is a column with the records' headers.", READS, default="false"
    ),
    Option(
        "group.id",
        Kind.STRING,
        "The group under which the query publishes how far it is, so that lag tools see it. It decides nothing: "
        "a query goes on from its checkpoint. `kafka.group.id` means the same.",
        STREAM_READS,
    ),
    Option(
        "groupIdPrefix",
        Kind.STRING,
        "Accepted for Spark's own format and without effect: no group is made up here.",
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
        "How often the driver asks again when offsets can't be had, or are lower than those already read.",
        READS,
        default="3",
        at_least=0,
    ),
    Option(
        "fetchOffset.retryIntervalMs",
        Kind.MILLISECONDS,
        "The pause before it asks again.",
        READS,
        default="10",
        at_least=0,
    ),
    Option(
        "partition.metadata.cache.ttl.ms",
        Kind.MILLISECONDS,
        "For how long the driver of a stream takes the list of topics and partitions as it was told before it asks "
        "again; -1: it asks every time.",
        STREAM_READS,
        default="1000",
        at_least=-1,
    ),
)

SINK_OPTIONS: tuple[Option, ...] = (
    Option("topic", Kind.STRING, "The topic of all rows; goes before the column topic.", WRITES),
    Option(
        "delivery",
        Kind.STRING,
        "exactly-once: rows become visible to readers of committed records once, whatever is retried or killed; "
        "at-least-once: rows are visible at once, and twice after a retry. Default: exactly-once in streams, inside "
        "foreachBatch and with txnAppId; at-least-once in other batch writes.",
        WRITES,
        choices=("exactly-once", "at-least-once"),
    ),
    Option(
        "txnAppId",
        Kind.STRING,
        "Whose version txnVersion is: the same version of the same application is written once, and passed over when "
        "it is written again. Default inside foreachBatch: the id of the query.",
        BATCH_WRITES,
    ),
    Option(
        "txnVersion",
        Kind.INT,
        "The version of the application's data; versions must grow. Default inside foreachBatch: the id of the batch.",
        BATCH_WRITES,
        at_least=0,
    ),
    Option(
        "transactionalIdPrefix",
        Kind.STRING,
        "What the transactional ids and the group of exactly-once writes begin with, for access rules.",
        WRITES,
        default="tidelog-spark",
    ),
    Option(
        "topicTimeoutMs",
        Kind.MILLISECONDS,
        "How long a task waits to hear of a topic before it fails, because there is none of the name.",
        WRITES,
        default="10000",
        at_least=0,
    ),
)

OPTIONS: Mapping[str, Option] = {option.name.lower(): option for option in (*SOURCE_OPTIONS, *SINK_OPTIONS)}

# Spark hands these to every source and sink, or they are for another part of it.
_NOT_OURS = frozenset(
    {"path", "paths", "checkpointlocation", "queryname", "mergeschema", "outputmode", "header", "inferschema"}
)

# Client settings that the source decides, and why.
_OWNED_BY_SOURCE: Mapping[str, str] = {
    "auto.offset.reset": "set startingOffsets to say where a new query begins; a restarted one goes on from its "
    "checkpoint",
    "key.deserializer": "keys are bytes; cast or parse the column key",
    "value.deserializer": "values are bytes; cast or parse the column value, or name it a string in schema()",
    "enable.auto.commit": "Spark decides when a batch is done; set group.id to have its offsets published",
    "interceptor.classes": "records go to Spark without a Python object each, so nothing can look at them on the way",
    "group.instance.id": "a query is no member of its group: it only publishes its offsets there",
    "group.protocol": "a query is no member of its group: it only publishes its offsets there",
}

# Client settings that the sink decides, and why.
_OWNED_BY_SINK: Mapping[str, str] = {
    "transactional.id": "every attempt of a task has one of its own; transactionalIdPrefix is what they begin with",
    "key.serializer": "keys are bytes or text; make them so with to_json, to_avro or a cast",
    "value.serializer": "values are bytes or text; make them so with to_json, to_avro or a cast",
    "interceptor.classes": "rows are written without a Python object each, so nothing can look at them on the way",
    "partitioner.class": "the key decides, as with Java's clients; give the DataFrame a column partition to decide it",
}


@dataclass(frozen=True)
class Options:
    """The options of one read or write, parsed; names in the case of the table."""

    use: Use
    values: Mapping[str, Any] = field(default_factory=dict)
    kafka: Mapping[str, str] = field(default_factory=dict)  # client settings, without their prefix

    def get(self, name: str) -> Any:
        """The value given, or the default, or None. The name must be one of the table."""
        row = OPTIONS[name.lower()]
        if row.name in self.values:
            return self.values[row.name]
        return None if row.default is None else row.parse(row.default)

    def is_given(self, name: str) -> bool:
        return OPTIONS[name.lower()].name in self.values


def read_options(given: Mapping[str, str], use: Use) -> Options:
    """Read what the user has set with option(); raises OptionError for what can't be right."""
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
            log.warning("option %s has no effect in a %s", row.name, use.value)
    if use.is_read:
        _refuse(kafka, _OWNED_BY_SOURCE, "source")
    else:
        _refuse(kafka, _OWNED_BY_SINK, "sink")
    if not kafka.get("bootstrap.servers", "").strip():
        raise OptionError("option kafka.bootstrap.servers is missing: the brokers' addresses, as 127.0.0.1:9092")
    return Options(use, values, kafka)


def option_of(given: Mapping[str, str], name: str) -> Any:
    """One option, before it is known what the others are for."""
    row = OPTIONS[name.lower()]
    text = next((text for key, text in given.items() if key.lower() == row.name.lower()), row.default)
    return None if text is None else row.parse(text)


def _refuse(kafka: Iterable[str], owned: Mapping[str, str], owner: str) -> None:
    for name in kafka:
        if name in owned:
            raise OptionError(f"option {KAFKA_PREFIX}{name} is decided by the {owner}: {owned[name]}")


def _unknown(name: str, use: Use) -> str:
    usable = [row.name for row in OPTIONS.values() if use in row.uses]
    near = nearest_name(name, usable) or nearest_name(name.lower(), [each.lower() for each in usable])
    if near is not None:
        near = OPTIONS[near.lower()].name
        return f"format tidelog has no option {name!r} in a {use.value}; did you mean {near!r}?"
    return (
        f"format tidelog has no option {name!r} in a {use.value}; client settings begin with {KAFKA_PREFIX!r}, and it "
        f"takes: {', '.join(sorted(usable))}"
    )
