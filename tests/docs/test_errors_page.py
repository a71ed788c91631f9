"""The page on errors names every error of the clients once and says rightly what a program may do."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog.client
import tidelog.errors
from tidelog.errors import AbortableError, ClientError, FatalError, RetriableError
from tidelog.protocol import ErrorCode

TEXT = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.split("## All of them")[1].splitlines() if line.startswith("| `")]
KINDS = {"retriable": RetriableError, "abortable": AbortableError, "fatal": FatalError}


def defined_errors() -> Iterator[type[ClientError]]:
    """Every error class in any module of the clients that is not that module's own affair."""
    for found in pkgutil.walk_packages(tidelog.client.__path__, "tidelog.client."):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            is_error = inspect.isclass(value) and issubclass(value, ClientError)
            if is_error and value.__module__ == module.__name__ and not name.startswith("_"):
                yield value


def named(row: str) -> list[str]:
    return [name for name in re.findall(r"`(\w+)`", row.split("|")[1]) if name not in ("ValueError", "ImportError")]


def test_every_error_can_be_imported_from_one_place() -> None:
    assert sorted(error.__name__ for error in defined_errors()) == sorted(tidelog.errors.__all__)


def test_the_page_names_every_error_once() -> None:
    assert sorted(name for row in ROWS for name in named(row)) == sorted(tidelog.errors.__all__)


@pytest.mark.parametrize("row", [row for row in ROWS if len(named(row)) == 1], ids=lambda row: named(row)[0])
def test_the_page_says_what_a_program_may_do(row: str) -> None:
    error = getattr(tidelog.errors, named(row)[0])
    said = {kind for kind in KINDS if f"({kind})" in row.split("|")[1]}
    assert said == {kind for kind, base in KINDS.items() if issubclass(error, base)}


@pytest.mark.parametrize("name", tidelog.errors.__all__)
def test_errors_can_be_pickled(name: str) -> None:
    cls = getattr(tidelog.errors, name)
    values: dict[str, object] = {
        "code": ErrorCode.UNKNOWN_SERVER_ERROR,
        "message": "what happened",
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "next_offset": 9,
    }
    parameters = inspect.signature(cls.__init__).parameters if "__init__" in dir(cls) else {}
    wanted = [values[parameter] for parameter in parameters if parameter in values]
    error = cls(*wanted) if wanted else cls("what happened")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
