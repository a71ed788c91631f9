"""Type checkers know the type of everything that people import: no Unknown, and nothing that is left to be guessed.

pyright takes every module of an installed package for public; what is held here is what the documentation names.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TYPED_CALLS = Path(__file__).with_name("typed_calls.py")
PUBLIC_MODULES = ("tidelog", "tidelog.errors", "tidelog.serialization", "tidelog.client.admin")


def pyright(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """It finds the packages of the Python that comes first in the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "pyright", *arguments],
        cwd=directory,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )


def public_names() -> Iterator[str]:
    for name in PUBLIC_MODULES:
        for public in importlib.import_module(name).__all__:
            if public != "__version__":
                yield f"{name}.{public}"


def test_every_public_type_is_known(tmp_path: Path) -> None:
    done = pyright("--verifytypes", "tidelog", "--ignoreexternal", "--outputjson", directory=tmp_path)
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    known = {symbol["name"]: symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"] for symbol in symbols}
    # A class is known when all its members are; the members' own rows say what is wrong with one that is not.
    assert [name for name in public_names() if not known.get(name)] == [], "see pyright --verifytypes tidelog"


def test_pyright_finds_the_types_of_calls_that_mypy_finds(tmp_path: Path) -> None:
    shutil.copy(TYPED_CALLS, tmp_path)
    done = pyright(TYPED_CALLS.name, directory=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", list(public_names()))
def test_public_classes_and_methods_say_what_they_are(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    if not inspect.isclass(value):
        return
    assert value.__doc__
    for method, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        # Methods of a base class, as `keys` of a mapping, are explained there.
        if inspect.isfunction(function) and not method.startswith("_"):
            assert inspect.getdoc(function) or any(hasattr(base, method) for base in value.__mro__[1:]), method
