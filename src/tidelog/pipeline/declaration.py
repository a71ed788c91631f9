"""What a pipeline's file declares: a name, a version, inputs, a function that transforms DataFrames, and outputs.

What always holds: a declaration starts nothing, needs no broker and doesn't import pyspark; mistakes are rejected
immediately, by a DeclarationError that says how to fix them. `runner` runs pipelines.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tidelog.common.checks import topic_name_problem
from tidelog.pipeline.errors import DeclarationError
from tidelog.pipeline.formats import Format
from tidelog.pipeline.outputs import Output, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidelog.pipeline.runner import PipelineRun

OutputMode = Literal["append", "update", "complete"]
OUTPUT_MODES = ("append", "update", "complete")
# Columns that an input has in addition to those of the value, if `meta` is set.
META_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers")
# What a transform can ask for in addition to its inputs.
SESSION_PARAMETER = "spark"
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
_INTERVAL = re.compile(r"(?:\d+\s+[a-z]+\s*)+", re.IGNORECASE)


@dataclass(frozen=True)
class BatchMap:
    """A user function that takes and returns a pandas DataFrame, for `TopicInput(map=...)`.

    Rows must be independent of each other: if the function raises an exception, it is called again with halves of the
    rows until the offending ones are found. Those become dead letters.
    """

    function: Callable[[Any], Any]


@dataclass(frozen=True)
class TopicInput:
    """A topic, read as a stream of rows.

    topic: one topic, or several that are merged into one stream. To read all topics that match a regular expression,
        set `pattern` instead.
    format: how to parse values into columns: Json(schema), Avro(...), Protobuf(...), Text(), Raw().
    starting: where the first run starts: "earliest", "latest", "group:<id>" (the committed offsets of that group),
        or offsets such as {"topic": {0: 17}}.
    watermark: (column, delay), such as ("at", "10 minutes"): how late rows may arrive.
    meta: True to add the columns `_key`, `_topic`, `_partition`, `_offset`, `_timestamp` and `_headers`, or a list of
        some of them.
    map: a function that takes one row as a dict, and returns a dict, a list of dicts, or None to drop the row; or
        BatchMap(function) for whole pandas DataFrames. If it raises an exception, the row becomes a dead letter. It
        must always return the same result for the same row, because Spark may call it again.
    map_schema: the columns that `map` returns, as DDL or StructType; by default the same as it gets.
    tombstones: how to handle null values: as a "dead-letter", not at all ("skip"), or as a row of nulls ("keep").
    options: options of the Spark source, such as {"maxOffsetsPerTrigger": "100000"}.
    """

    topic: str | Sequence[str] = ()
    format: Format | None = None
    pattern: str | None = None
    starting: str | Mapping[str, Mapping[int, int]] = "earliest"
    watermark: tuple[str, str] | None = None
    meta: bool | Sequence[str] = False
    map: Callable[[dict[str, Any]], Any] | BatchMap | None = None
    map_schema: Any = None
    tombstones: Literal["dead-letter", "skip", "keep"] = "dead-letter"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> tuple[str, ...]:
        return (self.topic,) if isinstance(self.topic, str) else tuple(self.topic)

    @property
    def meta_columns(self) -> tuple[str, ...]:
        if isinstance(self.meta, bool):
            return META_COLUMNS if self.meta else ()
        return tuple(self.meta)

    def check(self, where: str) -> None:
        if bool(self.topics) == bool(self.pattern):
            raise DeclarationError(f"{where}: give TopicInput either a topic or pattern=..., not both")
        for topic in self.topics:
            _check_topic(topic, where)
        _check_format(self.format, where)
        for column in self.meta_columns:
            if column not in META_COLUMNS:
                raise DeclarationError(f"{where}: meta={column!r} is not one of {', '.join(META_COLUMNS)}")
        if self.watermark is not None and (
            not isinstance(self.watermark, tuple)
            or len(self.watermark) != 2
            or not _INTERVAL.fullmatch(str(self.watermark[1]))
        ):
            raise DeclarationError(f"{where}: watermark must be (column, delay), such as ('at', '10 minutes')")
        if self.map is not None and not callable(self.map) and not isinstance(self.map, BatchMap):
            raise DeclarationError(f"{where}: map must be a function of one row, or BatchMap(function of a DataFrame)")
        if self.map is None and self.map_schema is not None:
            raise DeclarationError(f"{where}: map_schema describes what map=function returns, but there is no map")
        if self.tombstones not in ("dead-letter", "skip", "keep"):
            raise DeclarationError(
                f"{where}: tombstones must be 'dead-letter', 'skip' or 'keep', not {self.tombstones!r}"
            )


@dataclass(frozen=True)
class TableInput:
    """A compacted topic, read as a table: the latest value of every key, without keys whose latest value is null.

    You can join it with a stream like any other Spark table. It is read completely at the start, and again at most once
    per `refresh` interval, only if the topic has new records. A micro-batch sees the table as of its own start, or up
    to `refresh` earlier.

    key: how to parse keys into columns: None (they are in the value), or a Format; Text() adds a string column `_key`.
    """

    topic: str
    format: Format | None = None
    key: Format | None = None
    refresh: str = "10 seconds"
    meta: bool | Sequence[str] = False
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def meta_columns(self) -> tuple[str, ...]:
        if isinstance(self.meta, bool):
            return META_COLUMNS if self.meta else ()
        return tuple(self.meta)

    def check(self, where: str) -> None:
        _check_topic(self.topic, where)
        _check_format(self.format, where)
        for column in self.meta_columns:
            if column not in META_COLUMNS:
                raise DeclarationError(f"{where}: meta={column!r} is not one of {', '.join(META_COLUMNS)}")
        interval_seconds(self.refresh, f"{where}: refresh")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline: inputs, a function that transforms their DataFrames into one, and outputs.

    name: the name of the pipeline, used in commands and as the basis of other names.
    version: increase it with each change that should be replayed over the whole input.
    inputs: a TopicInput or TableInput for each name; the names are the parameters of `transform`.
    transform: called once, when the pipeline starts, with a DataFrame for each input (and the session, if it has a
        parameter `spark`); what it returns goes to every output.
    output_mode: "append" (rows that will not change), "update" (rows that changed), "complete" (all rows, each time).
    dead_letters: the topic for records that can't be parsed or processed; by default "<name>.dead-letters".
    trigger: how often a micro-batch starts.
    group: the consumer group under which progress is published; by default "tidelog-pipeline-<name>".
    options: Spark settings for this pipeline; the command line overrides them.
    """

    name: str
    version: int
    inputs: Mapping[str, TopicInput | TableInput]
    transform: Callable[..., DataFrame]
    outputs: Sequence[Output]
    output_mode: OutputMode = "append"
    dead_letters: str = ""
    trigger: str = "1 second"
    group: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise DeclarationError(
                f"Pipeline(name={self.name!r}): a name can have up to 100 letters, digits, '.', '_' and '-'"
            )
        where = f"pipeline {self.name!r}"
        if not isinstance(self.version, int) or isinstance(self.version, bool) or self.version < 1:
            raise DeclarationError(f"{where}: version={self.version!r} must be an integer of at least 1")
        if not self.dead_letters:
            object.__setattr__(self, "dead_letters", f"{self.name}.dead-letters")
        if not self.group:
            object.__setattr__(self, "group", f"tidelog-pipeline-{self.name}")
        _check_topic(self.dead_letters, f"{where}: dead_letters")
        interval_seconds(self.trigger, f"{where}: trigger")
        self._check_inputs(where)
        self._check_transform(where)
        self._check_outputs(where)

    def _check_inputs(self, where: str) -> None:
        if not isinstance(self.inputs, Mapping) or not self.inputs:
            raise DeclarationError(f"{where}: inputs must be a dict, such as {{'orders': TopicInput('orders', ...)}}")
        for name, declared in self.inputs.items():
            if not str(name).isidentifier() or name == SESSION_PARAMETER:
                raise DeclarationError(
                    f"{where}: an input can't be called {name!r}, because its name is a parameter of transform"
                )
            if not isinstance(declared, TopicInput | TableInput):
                raise DeclarationError(
                    f"{where}: input {name!r} must be a TopicInput or TableInput, not {type(declared).__name__}"
                )
            declared.check(f"{where}: input {name!r}")
        if not self.topic_inputs:
            raise DeclarationError(f"{where}: at least one input must be a TopicInput; a TableInput can only be joined")

    def _check_transform(self, where: str) -> None:
        if not callable(self.transform):
            raise DeclarationError(f"{where}: transform must be a function: transform=revenue, without parentheses")
        try:
            parameters = inspect.signature(self.transform).parameters
        except (TypeError, ValueError):  # functions written in C may have no signature
            return
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        unknown = [name for name in self.inputs if name not in parameters and not takes_any]
        if unknown:
            raise DeclarationError(
                f"{where}: transform has no parameter for input {unknown[0]!r}; it takes ({', '.join(parameters)})"
            )
        for name, parameter in parameters.items():
            is_given = name in self.inputs or name == SESSION_PARAMETER
            is_needed = parameter.default is parameter.empty and parameter.kind in (
                parameter.POSITIONAL_OR_KEYWORD,
                parameter.KEYWORD_ONLY,
                parameter.POSITIONAL_ONLY,
            )
            if is_needed and not is_given:
                raise DeclarationError(
                    f"{where}: transform has a parameter {name!r}, but no input has that name; "
                    f"the inputs are {', '.join(self.inputs)}"
                )

    def _check_outputs(self, where: str) -> None:
        if self.output_mode not in OUTPUT_MODES:
            raise DeclarationError(f"{where}: output_mode={self.output_mode!r} is not one of {', '.join(OUTPUT_MODES)}")
        if isinstance(self.outputs, Output):
            object.__setattr__(self, "outputs", [self.outputs])
        if not isinstance(self.outputs, Sequence) or not self.outputs:
            raise DeclarationError(f"{where}: outputs must be a list, such as outputs=[TopicOutput('revenue')]")
        read = {topic for declared in self.topic_inputs.values() for topic in declared.topics}
        if self.dead_letters in read:
            raise DeclarationError(f"{where}: dead_letters={self.dead_letters!r} is also an input: an endless loop")
        names: set[str] = set()
        for output in self.outputs:
            if not isinstance(output, Output):
                raise DeclarationError(
                    f"{where}: an output must be a TopicOutput, ParquetOutput, DeltaOutput, PostgresOutput or "
                    f"SqliteOutput, not {type(output).__name__}"
                )
            output.check(f"{where}: output {output.name!r}", self.output_mode)
            if output.address in names:
                raise DeclarationError(f"{where}: two outputs write to the {output.address}; remove one")
            names.add(output.address)
            if isinstance(output, TopicOutput) and output.topic in {*read, self.dead_letters}:
                raise DeclarationError(
                    f"{where}: output topic {output.topic!r} is also an input or used for dead letters: an endless loop"
                )

    def run(self, **options: Any) -> PipelineRun:
        """Run it to the end in this process, for tests and notebooks; takes the options of `runner.PipelineRun`.

        With once=True, it ends when everything that was there at the start has been processed.
        """
        from tidelog.pipeline.runner import PipelineRun

        run = PipelineRun(self, **options)
        run.run()
        return run

    @property
    def topic_inputs(self) -> dict[str, TopicInput]:
        return {name: each for name, each in self.inputs.items() if isinstance(each, TopicInput)}

    @property
    def table_inputs(self) -> dict[str, TableInput]:
        return {name: each for name, each in self.inputs.items() if isinstance(each, TableInput)}

    @property
    def parameters(self) -> frozenset[str]:
        """The inputs, and possibly the session, that the transform has parameters for."""
        try:
            parameters = inspect.signature(self.transform).parameters
        except (TypeError, ValueError):
            return frozenset(self.inputs)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return frozenset({*self.inputs, *parameters})
        return frozenset(parameters)


_SECONDS = {"millisecond": 0.001, "ms": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}


def interval_seconds(text: str, where: str) -> float:
    """The length of an interval such as "10 seconds", in Spark's syntax."""
    total = 0.0
    words = str(text).split()
    if not words or len(words) % 2:
        raise DeclarationError(f"{where}={text!r} is not an interval; write something like '10 seconds' or '1 minute'")
    for number, unit in zip(words[::2], words[1::2], strict=True):
        size = _SECONDS.get(unit.lower().rstrip("s") or unit, _SECONDS.get(unit.lower()))
        if size is None or not number.isdigit():
            raise DeclarationError(
                f"{where}={text!r} is not an interval; write something like '10 seconds' or '1 minute'"
            )
        total += int(number) * size
    return total


def _check_topic(topic: object, where: str) -> None:
    problem = topic_name_problem(topic) if isinstance(topic, str) else f"{topic!r} is not the name of a topic"
    if problem is not None:
        raise DeclarationError(f"{where}: {problem}")


def _check_format(format_: object, where: str) -> None:
    if not isinstance(format_, Format):
        what = "None" if format_ is None else f"{type(format_).__name__}"
        raise DeclarationError(
            f"{where}: format must be Json(schema), Avro(...), Protobuf(...), Text() or Raw(), not {what}"
            + (" (add parentheses)" if isinstance(format_, type) else "")
        )
    format_.check_as_input(where)
