"""How the demo speaks: chapters with what they took, commands as one would type them, and what these print."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_LINES_QUOTED = 24
_LETTERS_QUOTED = 150


class Teller:
    """Tells the story to a terminal in colours, to a file without, or to nobody."""

    def __init__(self, *, quietly: bool) -> None:
        self._console = None if quietly else _console()
        self._started_s = time.monotonic()
        self.chapters: dict[str, float] = {}
        """What each chapter took, in seconds."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_s

    @contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        began_s = time.monotonic()
        self._print(f"\n[bold cyan]{len(self.chapters) + 1}. {_escaped(title)}[/]")
        yield
        took_s = self.chapters[title] = time.monotonic() - began_s
        self._print(f"   [dim]{took_s:.1f} s, {self.seconds:.0f} s in all[/]")

    def say(self, text: str) -> None:
        self._print(f"   {_escaped(text)}")

    def good(self, text: str) -> None:
        """Something that was checked, and is as it must be."""
        self._print(f"   [bold green]✓[/] {_escaped(text)}")

    def command(self, text: str) -> None:
        self._print(f"   [bold]$ {_escaped(text)}[/]")

    def quote(self, text: str) -> None:
        """What a command has printed."""
        lines = text.rstrip().splitlines()
        for line in lines[:_LINES_QUOTED]:
            shown = line if len(line) <= _LETTERS_QUOTED else f"{line[: _LETTERS_QUOTED - 1]}…"
            self._print(f"     [dim]{_escaped(shown)}[/]")
        if len(lines) > _LINES_QUOTED:
            self._print(f"     [dim]... and {len(lines) - _LINES_QUOTED} lines more[/]")

    def _print(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, soft_wrap=True, highlight=False)


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
