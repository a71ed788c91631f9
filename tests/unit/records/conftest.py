"""The kernel twice in one process: as it was compiled and, loaded from the same source, interpreted."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tidelog import records
from tidelog.records import (
    arrow,
    codec,
    compaction,
    kernel,
    kernel_arrow,
    kernel_check,
    kernel_compact,
    kernel_fill,
    kernel_is_compiled,
    kernel_offset_map,
    kernel_small,
    kernel_walk,
)

RECORDS = Path(codec.__file__).parent
ARROW_NAMES = (
    "RecordReader",
    "BinarySource",
    "ColumnsWriter",
    "ViewColumn",
    "encode_columns",
    "fill_headers",
)
FILL_NAMES = ("BytesColumn", "RecordTable", "fill_table")


@dataclass(frozen=True)
class Twin:
    """One of the two kernels."""

    name: str
    kernel: ModuleType
    kernel_arrow: ModuleType
    kernel_check: ModuleType
    kernel_fill: ModuleType
    kernel_offset_map: ModuleType
    compaction: ModuleType  # over this one's loops

    def scan(self, batch: bytes | bytearray, max_bytes: int = records.DECOMPRESSED_BYTES_MAX) -> records.RecordsScan:
        """Check the records of a batch as the broker does; `use` has no part in this."""
        header = records.parse_header(batch)
        opened = records.view_records(batch, header, max_bytes=max_bytes)
        found: records.RecordsScan = self.kernel_check.scan_records(
            opened, header.records_count, header.base_timestamp, records.KEYLESS_INDEXES_MAX
        )
        return found

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the modules above the kernel use this one."""
        monkeypatch.setattr(codec, "kernel", self.kernel)
        for name in ARROW_NAMES:
            source = self.kernel if name == "RecordReader" else self.kernel_arrow
            monkeypatch.setattr(arrow, name, getattr(source, name))
        for name in FILL_NAMES:
            monkeypatch.setattr(arrow, name, getattr(self.kernel_fill, name))


def load_source(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"interpreted_{name}", RECORDS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def interpreted() -> Twin:
    plain = load_source("kernel")
    with pytest.MonkeyPatch.context() as patch:
        # The Arrow half shares the reader with the other half and must find the interpreted one.
        patch.setitem(sys.modules, "tidelog.records.kernel", plain)
        plain_arrow = load_source("kernel_arrow")
        plain_check = load_source("kernel_check")
        plain_fill = load_source("kernel_fill")
        plain_map = load_source("kernel_offset_map")
        patch.setitem(sys.modules, "tidelog.records.kernel_offset_map", plain_map)
        patch.setitem(sys.modules, "tidelog.records.kernel_walk", load_source("kernel_walk"))
        plain_compact = load_source("kernel_compact")
        patch.setitem(sys.modules, "tidelog.records.kernel_compact", plain_compact)
        patch.setattr(records, "kernel_compact", plain_compact)
        plain_small = load_source("kernel_small")
        patch.setitem(sys.modules, "tidelog.records.kernel_small", plain_small)
        patch.setattr(records, "kernel_small", plain_small)
        plain_compaction = load_source("compaction")
    return Twin("interpreted", plain, plain_arrow, plain_check, plain_fill, plain_map, plain_compaction)


@pytest.fixture(scope="session")
def compiled() -> Twin:
    if not kernel_is_compiled():
        pytest.fail(
            "the record kernel is not compiled; `make setup` or `python setup.py build_ext --inplace` builds it"
        )
    for module in (
        kernel_arrow,
        kernel_check,
        kernel_compact,
        kernel_fill,
        kernel_offset_map,
        kernel_small,
        kernel_walk,
    ):
        assert not str(module.__file__).endswith(".py")
    return Twin("compiled", kernel, kernel_arrow, kernel_check, kernel_fill, kernel_offset_map, compaction)


@pytest.fixture(params=["compiled", "interpreted"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Twin:
    """Runs the test over each of the two kernels."""
    chosen: Twin = request.getfixturevalue(request.param)
    chosen.use(monkeypatch)
    return chosen
