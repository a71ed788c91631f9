"""Applies a user's function to rows, and turns exceptions into dead letters. Runs on executors.

What always holds: each row becomes what the function returns for it, or a row with an error that names the exception,
or nothing if the function drops it; rows that already have an error are not passed to the function. The result is
checked against its schema here, so that a wrong type affects only that row and not the whole query.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.declaration import BatchMap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_MESSAGE_LENGTH_MAX = 1000


def apply_map(
    rows: DataFrame,
    function: Callable[[dict[str, Any]], Any] | BatchMap,
    given: StructType,
    made: StructType,
    carried: Sequence[str],
    error: str,
) -> DataFrame:
    """Rows with the columns that the function returns, plus the carried columns and the error."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    shape = StructType([*made.fields, *(rows.schema[name] for name in carried), StructField(error, StringType())])
    mapper = GuardedMap(
        function.function if isinstance(function, BatchMap) else function,
        isinstance(function, BatchMap),
        tuple(given.names),
        to_arrow_schema(made, timezone="UTC"),
        tuple(carried),
        error,
    )
    return rows.mapInArrow(mapper, shape)


@dataclass(frozen=True)
class GuardedMap:
    """A user's function, wrapped for mapInArrow."""

    function: Callable[[Any], Any]
    is_of_batches: bool
    given: tuple[str, ...]
    made: pa.Schema
    carried: tuple[str, ...]
    error: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield self.map(batch)

    def map(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The resulting rows, in order."""
        found = _Found()
        errors = batch.column(self.error)
        is_good = pc.is_null(errors)
        for index in pc.indices_nonzero(pc.invert(is_good)).to_pylist():
            found.refuse(index, errors[index].as_py())
        good = pc.indices_nonzero(is_good).cast(pa.int64())
        given = batch.select(list(self.given)).take(good)
        if self.is_of_batches:
            self._map_frames(given, good.to_pylist(), found)
        else:
            self._map_rows(given, good.to_pylist(), found)
        return self._joined(batch, found)

    def _map_rows(self, given: pa.RecordBatch, indexes: Sequence[int], found: _Found) -> None:
        for index, row in zip(indexes, given.to_pylist(), strict=True):
            try:
                made = self.function(row)
                rows = _rows_of(made)
            except Exception as error:  # noqa: BLE001 - any exception of the user's function rejects the row
                found.refuse(index, described(error))
            else:
                for each in rows:
                    found.keep(index, each)

    def _map_frames(self, given: pa.RecordBatch, indexes: Sequence[int], found: _Found) -> None:
        if not indexes:
            return
        try:
            frame = self.function(given.to_pandas())
            made = pa.RecordBatch.from_pandas(frame, schema=self.made, preserve_index=False).to_pylist()
        except Exception as error:  # noqa: BLE001 - any exception of the user's function rejects the row
            if len(indexes) == 1:
                found.refuse(indexes[0], described(error))
                return
            half = len(indexes) // 2
            self._map_frames(given.slice(0, half), indexes[:half], found)
            self._map_frames(given.slice(half), indexes[half:], found)
            return
        # A function of whole frames may drop or add rows; only if it didn't do we know which row came from which.
        is_one_to_one = len(made) == len(indexes)
        for position, row in enumerate(made):
            found.keep(indexes[position if is_one_to_one else 0], row)

    def _joined(self, batch: pa.RecordBatch, found: _Found) -> pa.RecordBatch:
        kind = pa.struct(list(self.made))
        try:
            rows = pa.array(found.rows, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError):
            self._refuse_wrong_types(found, kind)
            rows = pa.array(found.rows, kind)
        origin = pa.array(found.indexes, pa.int64())
        columns = [*rows.flatten(), *(batch.column(name).take(origin) for name in self.carried)]
        columns.append(pa.array(found.errors, pa.string()))
        return pa.RecordBatch.from_arrays(columns, names=[*self.made.names, *self.carried, self.error])

    def _refuse_wrong_types(self, found: _Found, kind: pa.StructType) -> None:
        for position, row in enumerate(found.rows):
            try:
                pa.array([row], kind)
            except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError) as error:
                found.rows[position] = None
                found.errors[position] = f"TypeError: what map returned does not fit its schema: {error}"[
                    :_MESSAGE_LENGTH_MAX
                ]


class _Found:
    """The results for the rows of a batch."""

    def __init__(self) -> None:
        self.indexes: list[int] = []
        self.rows: list[dict[str, Any] | None] = []
        self.errors: list[str | None] = []

    def keep(self, index: int, row: dict[str, Any]) -> None:
        self.indexes.append(index)
        self.rows.append(row)
        self.errors.append(None)

    def refuse(self, index: int, error: str) -> None:
        self.indexes.append(index)
        self.rows.append(None)
        self.errors.append(error)


def _rows_of(made: object) -> list[dict[str, Any]]:
    if made is None:
        return []
    if isinstance(made, dict):
        return [made]
    if isinstance(made, list) and all(isinstance(each, dict) for each in made):
        return made
    raise TypeError(f"map must return a dict, a list of dicts, or None, not {type(made).__name__}")


def described(error: BaseException) -> str:
    """Class and message, with the line in the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {error}"[:_MESSAGE_LENGTH_MAX] + where
