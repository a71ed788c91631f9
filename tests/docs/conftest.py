"""Examples in the documentation, taken out of it and run.

A `sh` or `python` block is run; a `text` block behind it is what it must print, where `...` stands for anything. Blocks
of a page run in order in one empty directory. 127.0.0.1:9092 stands for the broker of the test.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTED_BOOTSTRAP = "127.0.0.1:9092"
DEADLINE_S = 60

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass
class Example:
    language: str
    code: str
    expected: str = ""


def examples_of(page: str) -> list[Example]:
    found: list[Example] = []
    for language, content in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if language == "text":
            assert found, "output stands before any example"
            assert not found[-1].expected, "an example has two outputs"
            found[-1].expected = content
        else:
            assert language in ("sh", "python"), f"{page} has a block of {language}"
            found.append(Example(language, content))
    return found


class ExampleRunner:
    """Runs examples in a directory, against one broker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bootstrap = DOCUMENTED_BOOTSTRAP
        self.deadline_s: float = DEADLINE_S  # for each example
        self.deadline_s = DEADLINE_S

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TIDELOG_", "PYTEST_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return inherited | {"PATH": path, "TIDELOG_BOOTSTRAP": self.bootstrap}

    def run(self, example: Example) -> None:
        """Run it; it must succeed and print what is documented."""
        command = self._command(example)
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.deadline_s,
        )
        assert done.returncode == 0, f"{example.code}\n{done.stdout}\n{done.stderr}"
        if example.expected:
            self.check_output(example, done.stdout)

    def check_output(self, example: Example, output: str) -> None:
        expected = self._here(example.expected)
        same = doctest.OutputChecker().check_output(expected, output, doctest.ELLIPSIS)
        assert same, f"{example.code}\ndocumented:\n{expected}\nprinted:\n{output}"

    def _command(self, example: Example) -> list[str]:
        code = self._here(example.code)
        if example.language == "sh":
            return ["bash", "-euo", "pipefail", "-c", code]
        script = self.directory / ("test_example.py" if "def test_" in code else "example.py")
        script.write_text(code, encoding="utf-8")
        if script.name.startswith("test_"):
            return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", script.name]
        return [sys.executable, script.name]

    def _here(self, text: str) -> str:
        return text.replace(DOCUMENTED_BOOTSTRAP, self.bootstrap)


@pytest.fixture
def examples() -> Callable[[str], list[Example]]:
    """The examples of a page, named by its path in the project."""
    return examples_of


@pytest.fixture
def runner(tmp_path: Path) -> ExampleRunner:
    return ExampleRunner(tmp_path)
