"""ARCHITECTURE.md names every module, and every file it names is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tidelog"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
WAYS, MAP = TEXT.split("\n## The files\n")

# One file an API: the map names them by a pattern.
_PATTERN = "kNN_*.py"


def mapped() -> Iterator[tuple[Path, str]]:
    """Every entry of the map: its path, which may end in the pattern, and what is said of it."""
    folder = ROOT
    for line in MAP.splitlines():
        if line.startswith("### "):
            folder = ROOT / line.removeprefix("### ")
            assert folder.is_dir(), line
        elif line.startswith("- "):
            entry = re.fullmatch(r"- `([\w./*]+)`: (.+)\.", line)
            assert entry is not None, f"not 'file: what it is.': {line}"
            yield folder / entry[1], entry[2]


def files_of(path: Path) -> list[Path]:
    return sorted(path.parent.glob(path.name.replace("NN", "[0-9][0-9]")))


def test_every_entry_of_the_map_is_there() -> None:
    for path, _ in mapped():
        assert files_of(path), path


def test_every_module_is_in_the_map() -> None:
    named = [file for path, _ in mapped() for file in files_of(path)]
    assert len(named) == len(set(named)), "a file stands twice"
    modules = {path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"} | {SOURCE / "__init__.py"}
    assert modules - set(named) == set()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+\.py)`", WAYS))))
def test_files_named_on_the_way_are_there(name: str) -> None:
    assert (SOURCE / name).is_file() or (ROOT / name).is_file()


def test_the_ways_go_through_the_files_in_order() -> None:
    """What a newcomer follows from the socket to the disk must not lose a step when files are renamed."""
    produce, fetch = (
        re.findall(r"`([\w/]+\.py)`", TEXT.split(f"## The way of a {name} request")[1].split("\n## ")[0])
        for name in ("produce", "fetch")
    )
    assert in_order(
        produce,
        "broker/listener.py broker/connection.py broker/dispatch.py broker/handlers/k00_produce.py "
        "broker/replica_manager.py broker/partition.py log/partition_log.py log/segment.py broker/purgatory.py",
    )
    assert in_order(
        fetch,
        "broker/handlers/k01_fetch.py broker/replica_manager.py broker/partition.py log/partition_log.py "
        "log/file_slice.py broker/purgatory.py broker/outgoing.py",
    )


def in_order(named: list[str], steps: str) -> bool:
    rest = iter(named)
    return all(step in rest for step in steps.split())


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Z]\w+)\.(\w+)`", TEXT))))
def test_classes_and_members_that_are_named_exist(name: tuple[str, str]) -> None:
    class_name, member = name
    definition = re.compile(rf"^class {class_name}\b.*?(?=^class |\Z)", re.DOTALL | re.MULTILINE)
    found = [match for path in SOURCE.rglob("*.py") for match in definition.findall(path.read_text(encoding="utf-8"))]
    assert any(re.search(rf"def {member}\b|self\.{member}\b", text) for text in found), f"{class_name}.{member}"
