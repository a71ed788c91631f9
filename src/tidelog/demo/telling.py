"""What the demo prints: chapters and how long they took, commands as one would type them, and their output."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

PROGRESS_EVERY_S = 10.0
_LINES_QUOTED = 24
_LETTERS_QUOTED = 150


class Teller:
    """Prints to a terminal with colours, to a file without, or not at all."""

    def __init__(self, *, quietly: bool) -> None:
        self._console = None if quietly else _console()
        self._started_s = time.monotonic()
        self._status: Status | None = None
        self._progress_s = self._started_s
        self.chapters: dict[str, float] = {}
        """How long each chapter took, in seconds."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_s

    @contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        began_s = self._progress_s = time.monotonic()
        self._print(f"\n[bold cyan]{len(self.chapters) + 1}. {_escaped(title)}[/]")
        try:
            yield
        finally:
            self._end_progress()
        took_s = self.chapters[title] = time.monotonic() - began_s
        self._print(f"   [dim]{took_s:.1f} s, {self.seconds:.0f} s in all[/]")

    def progress(self, text: str) -> None:
        """How far a step is: a line that changes on a terminal, else a line every now and then."""
        if self._console is None:
            return
        if self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status("")
                self._status.start()
            self._status.update(f"[dim]{_escaped(text)}[/]")
        elif time.monotonic() - self._progress_s >= PROGRESS_EVERY_S:
            self._progress_s = time.monotonic()
            self._print(f"   ... {_escaped(text)}")

    def _end_progress(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def say(self, text: str) -> None:
        self._print(f"   {_escaped(text)}")

    def good(self, text: str) -> None:
        """A check that passed."""
        self._print(f"   [bold green]✓[/] {_escaped(text)}")

    def command(self, text: str) -> None:
        self._print(f"   [bold]$ {_escaped(text)}[/]")

    def quote(self, text: str) -> None:
        """The output of a command."""
        lines = text.rstrip().splitlines()
        for line in lines[:_LINES_QUOTED]:
            shown = line if len(line) <= _LETTERS_QUOTED else f"{line[: _LETTERS_QUOTED - 1]}…"
            self._print(f"     [dim]{_escaped(shown)}[/]")
        if len(lines) > _LINES_QUOTED:
            self._print(f"     [dim]... and {len(lines) - _LINES_QUOTED} more lines[/]")

    def _print(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, soft_wrap=True, highlight=False)


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
