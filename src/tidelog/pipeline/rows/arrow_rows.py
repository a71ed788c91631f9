"""Parses values in Python into Arrow arrays of rows; shared by Avro and Protobuf. Runs on executors.

What always holds: a value that can't be parsed gets an error in its row and never fails the task. An unreachable schema
registry does fail the task, because the value is not at fault, and Spark retries the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tidelog.client.serialization.registry import SchemaRegistry
from tidelog.client.serialization.registry_errors import SchemaRegistryUnavailableError

_MESSAGE_LENGTH_MAX = 500
_CONVERSION_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    TypeError,
    ValueError,
    OverflowError,
)

Convert = Callable[[Any], Any]


def parse_values(
    values: pa.Array, parse: Callable[[bytes], dict[str, Any]], kind: pa.StructType, error: str
) -> pa.Array:
    """A struct for each value: its fields, plus a field `error` that says why it could not be parsed."""
    rows: list[dict[str, Any] | None] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        if value is None:
            rows.append(None)
            errors.append(None)
            continue
        try:
            rows.append(parse(value))
            errors.append(None)
        except Exception as failure:  # noqa: BLE001 - parsers raise many kinds of errors for invalid bytes
            _raise_if_not_the_values_fault(failure)
            rows.append(None)
            errors.append(_described(failure))
    return _as_array(rows, errors, kind, error)


def _as_array(rows: list[dict[str, Any] | None], errors: list[str | None], kind: pa.StructType, error: str) -> pa.Array:
    fields = pa.struct([kind.field(index) for index in range(kind.num_fields) if kind.field(index).name != error])
    try:
        array = pa.array(rows, fields)
    except _CONVERSION_ERRORS:
        for index, row in enumerate(rows):
            try:
                pa.array([row], fields)
            except _CONVERSION_ERRORS as failure:
                rows[index] = None
                errors[index] = _described(failure)
        array = pa.array(rows, fields)
    return pa.StructArray.from_arrays(
        [*array.flatten(), pa.array(errors, pa.string())], fields=[*fields, kind.field(error)]
    )


def _raise_if_not_the_values_fault(failure: BaseException) -> None:
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, SchemaRegistryUnavailableError):
            raise failure
        cause = cause.__cause__ or cause.__context__


def _described(failure: BaseException) -> str:
    words = " ".join(str(failure).split())[:_MESSAGE_LENGTH_MAX]
    return f"{type(failure).__name__}: {words or 'the bytes do not match the schema'}"


def registry_text(registry: str | Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The settings of a registry in a form that is hashable and can be sent to executors."""
    settings = {"url": registry} if isinstance(registry, str) else dict(registry)
    return tuple(sorted(settings.items()))


@lru_cache(maxsize=8)
def registry_client(settings: tuple[tuple[str, Any], ...]) -> SchemaRegistry:
    """One client per process and registry."""
    given = dict(settings)
    return SchemaRegistry(given.pop("url"), **given)
