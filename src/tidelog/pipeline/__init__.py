"""Pipelines as code: a Python file declares what to read, how to transform it on Spark, and where the results go.

You can import this package and declare a pipeline without Spark; you need Spark only to run one.
"""

from __future__ import annotations

from tidelog.pipeline.declaration import BatchMap, Pipeline, TableInput, TopicInput
from tidelog.pipeline.errors import AlreadyRunningError, DeclarationError, PipelineError, QueryFailedError
from tidelog.pipeline.formats import Avro, Format, Json, Protobuf, Raw, Text
from tidelog.pipeline.outputs import (
    DeltaOutput,
    Output,
    ParquetOutput,
    PostgresOutput,
    SqliteOutput,
    TableOutput,
    TopicOutput,
)

__all__ = [
    "AlreadyRunningError",
    "Avro",
    "BatchMap",
    "DeclarationError",
    "DeltaOutput",
    "Format",
    "Json",
    "Output",
    "ParquetOutput",
    "Pipeline",
    "PipelineError",
    "PostgresOutput",
    "Protobuf",
    "QueryFailedError",
    "Raw",
    "SqliteOutput",
    "TableInput",
    "TableOutput",
    "Text",
    "TopicInput",
    "TopicOutput",
]
