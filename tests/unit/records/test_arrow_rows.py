"""Rows of Arrow columns as records: the bytes, their bounds, and their partitions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.records import kernel_arrow, kernel_build
from tidelog.records.arrow import HEADERS_TYPE
from tidelog.records.arrow_rows import NO_PARTITION, ArrowRows, by_partition, choose_partitions
from tidelog.records.batch import BATCH_HEADER_SIZE
from tidelog.records.codec import encode_batch

parts = st.none() | st.binary(max_size=200)
row = st.tuples(
    parts,
    parts,
    st.lists(st.tuples(st.text(max_size=5), parts), max_size=2),
    st.integers(min_value=0, max_value=2**60),
)


def rows_of(records: list[Any]) -> ArrowRows:
    return ArrowRows(
        len(records),
        pa.array([record[0] for record in records], pa.binary()),
        pa.array([record[1] for record in records], pa.binary()),
        pa.array([[{"key": key, "value": value} for key, value in record[2]] for record in records], HEADERS_TYPE),
        pa.array([record[3] for record in records], pa.int64()),
        0,
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(row, min_size=1, max_size=15), st.integers(0, 14), st.integers(1, 15))
def test_any_run_is_what_encode_batch_writes(records: list[Any], first: int, count: int) -> None:
    first = min(first, len(records) - 1)
    end = min(first + count, len(records))
    rows = rows_of(records)
    buffer = bytearray(rows.size_max(first, end))
    written = rows.write(buffer, first, end)
    expected = encode_batch(records[first:end])
    assert bytes(buffer[BATCH_HEADER_SIZE : written.size]) == bytes(expected[BATCH_HEADER_SIZE:])
    assert written.base_timestamp == records[first][3]
    assert written.max_timestamp == max(record[3] for record in records[first:end])


def test_a_buffer_that_is_too_small_is_not_overrun() -> None:
    rows = rows_of([(b"k", b"v" * 100, [], 1)] * 10)
    with pytest.raises((IndexError, ValueError)):
        rows.write(bytearray(500), 0, 10)


def test_runs_fit_their_size() -> None:
    rows = rows_of([(None, b"x" * size, [], 1) for size in (10, 10, 500, 10, 2000, 10, 10)])
    runs = list(rows.runs(800))
    assert runs == [(0, 4), (4, 5), (5, 7)]
    assert all(rows.size_max(first, end) <= 800 for first, end in runs if end - first > 1)
    assert [run for size in (1, 10**9) for run in rows_of([(None, None, [], 0)]).runs(size)] == [(0, 1), (0, 1)]


def test_slices_of_columns_and_other_types_can_be_written() -> None:
    keys = pa.array(["a", "b", "c", None], pa.string()).slice(1)
    values = pa.array([b"1", b"2", b"3"], pa.large_binary()).dictionary_encode()
    rows = ArrowRows(3, keys, values, None, None, 77)
    buffer = bytearray(rows.size_max(0, 3))
    written = rows.write(buffer, 1, 3)
    expected = encode_batch([(b"c", b"2", (), 77), (None, b"3", (), 77)])
    assert bytes(buffer[BATCH_HEADER_SIZE : written.size]) == bytes(expected[BATCH_HEADER_SIZE:])


# Partitions


def load_interpreted() -> tuple[ModuleType, ModuleType]:
    loaded = []
    for name in ("kernel_arrow", "kernel_build"):
        source = Path(str(kernel_build.__file__)).parent / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"plain_{name}", source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module
        spec.loader.exec_module(module)
        loaded.append(module)
    return loaded[0], loaded[1]


@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
def test_keys_of_columns_have_the_partitions_of_keys(twin: str) -> None:
    arrow, build = (kernel_arrow, kernel_build) if twin == "compiled" else load_interpreted()
    keys = [None if number % 7 == 0 else b"%d" % number * (number % 9) for number in range(500)]
    column = pa.array(keys, pa.binary()).slice(3)
    out = bytearray(4 * len(column))
    source = arrow.BinarySource(
        memoryview(column.buffers()[2]).cast("B"),
        memoryview(column.buffers()[1]).cast("B").cast("i"),
        memoryview(column.buffers()[0]).cast("B"),
        3,
    )
    build.partitions_of_keys(source, len(column), 11, memoryview(out).cast("i"))
    expected = [-1 if key is None else kernel_build.partition_for_key(key, 11) for key in keys[3:]]
    assert memoryview(out).cast("i").tolist() == expected
    with pytest.raises(ValueError, match="at least one"):
        build.partitions_of_keys(source, 1, 0, memoryview(out).cast("i"))


def test_rows_are_grouped_in_their_order() -> None:
    keys = [None if number % 5 == 0 else b"%d" % (number % 13) for number in range(200)]
    batch = pa.record_batch({"key": pa.array(keys, pa.binary()), "number": pa.array(range(200))})
    numbers = choose_partitions(batch.column(0), 200, 4)
    groups = dict(by_partition(batch, numbers))
    assert set(groups) <= {NO_PARTITION, 0, 1, 2, 3}
    assert groups[NO_PARTITION].column("number").to_pylist() == list(range(0, 200, 5))
    for partition, rows in groups.items():
        assert rows.column("number").to_pylist() == sorted(rows.column("number").to_pylist())
        if partition >= 0:
            assert {kernel_build.partition_for_key(key, 4) for key in rows.column("key").to_pylist()} == {partition}
    assert sum(rows.num_rows for rows in groups.values()) == 200
