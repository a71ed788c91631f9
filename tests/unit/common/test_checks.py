"""Names of files and directories: only what a broker writes itself is taken for its own."""

from __future__ import annotations

import pytest

from tidelog.common.checks import offset_in_file_name, partition_of_directory


@pytest.mark.parametrize("name", ["", "7", "²" * 20, "٣" * 20, "0" * 19, "0" * 21, "-" + "0" * 19, "0" * 20 + "\n"])
def test_other_files_have_no_offset(name: str) -> None:
    assert offset_in_file_name(name) is None


def test_the_offset_of_a_file() -> None:
    assert offset_in_file_name("00000000000000000042") == 42


@pytest.mark.parametrize(
    "name",
    ["", "-", "a", "a-", "-1", "a-²", "a-01", "a-+1", "a- 1", "ü-1", "\udcff-1", "a/b-1", "..-1", "a-12345678901"],
)
def test_other_directories_belong_to_no_partition(name: str) -> None:
    assert partition_of_directory(name) is None


@pytest.mark.parametrize(("name", "partition"), [("a-0", ("a", 0)), ("a-b-10", ("a-b", 10)), ("a--1", ("a-", 1))])
def test_the_partition_of_a_directory(name: str, partition: tuple[str, int]) -> None:
    assert partition_of_directory(name) == partition
