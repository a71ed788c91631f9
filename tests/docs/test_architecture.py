"""Every file that ARCHITECTURE.md names is there, and every module says what it is for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tidelog"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_is_for(module: Path) -> None:
    """The first sentence is the module's entry in the file index, so it has to be there and to be a sentence."""
    text = module.read_text(encoding="utf-8")
    if not text.strip():
        return
    docstring = ast.get_docstring(ast.parse(text)) or ""
    assert re.match(r"\S.{15,}?[.:;](\s|$)", docstring, re.DOTALL), f"{module}: {docstring[:80]!r}"


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+\.py)`", TEXT))))
def test_files_named_on_the_paths_are_there(name: str) -> None:
    assert (SOURCE / name).is_file() or (ROOT / name).is_file()


def test_the_paths_go_through_the_files_in_order() -> None:
    """What a newcomer follows from the socket to the disk must not lose a step when files are renamed."""
    produce, fetch = (
        re.findall(r"`([\w/]+\.py)`", TEXT.split(f"## The path of a {name} request")[1].split("\n## ")[0])
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


def test_every_lock_is_named() -> None:
    """Whoever takes a lock has to know which others may be held with it."""
    section = TEXT.split("\n## Locks\n")[1].split("\n## ")[0]
    made = re.compile(r"(?:threading|asyncio)\.(?:R?Lock|Condition)\(")
    with_locks = {
        str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if made.search(path.read_text(encoding="utf-8"))
    }
    unnamed = {path for path in with_locks if not path.startswith("bench/")} - set(
        re.findall(r"`([\w/]+\.py)`", section)
    )
    assert unnamed == set()
