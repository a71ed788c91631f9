"""Progress of long work: a bar on standard error while a person watches, and nothing otherwise.

What always holds: standard output is for results, and a bar is shown only where it can't run through them; it is gone
when the work ends, however it ends. rich is imported only if there is something to show.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[float, str], None]
"""Takes how much is done, in the unit of the total, and a short description."""


def is_watched(*, prints: bool = False) -> bool:
    """Whether anyone would see a bar; with `prints`, not if results go to the same terminal."""
    return sys.stderr.isatty() and not (prints and sys.stdout.isatty())


@contextmanager
def progress(words: str, total: float | None, *, shown: bool, in_bytes: bool = False) -> Iterator[Advance]:
    """A bar up to the total, or one without an end if that is not known."""
    if not shown:
        yield lambda done, words: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    share: ProgressColumn = DownloadColumn() if in_bytes else TaskProgressColumn()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), share, TimeElapsedColumn())
    if total is not None:
        columns += (TextColumn("left"), TimeRemainingColumn())  # type: ignore[assignment]  # one column more
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(words, total=total)

        def advance(done: float, words: str) -> None:
            display.update(task, completed=done if total is None else min(done, total), description=words)

        yield advance


@contextmanager
def steps(tell: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Report each step of long work; while a person watches, the current one is shown with its elapsed time."""
    if not is_watched():
        yield tell
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("preparing", total=None)

        def step(text: str) -> None:
            tell(text)
            display.reset(task, description=escape(text))

        yield step


class Durations:
    """How long each step of long work took."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._steps: list[tuple[float, str]] = []

    def begin(self, step: str) -> float:
        """The step before ends here; gives the seconds since the work began."""
        elapsed_s = time.monotonic() - self._began_s
        self._steps.append((elapsed_s, step.strip()))
        return elapsed_s

    def summary(self, count: int = 3) -> str:
        """The whole time, and the steps that took most of it."""
        total_s = time.monotonic() - self._began_s
        if not self._steps:
            return f"took {total_s:.0f} s"
        ends_s = [*(began_s for began_s, _ in self._steps[1:]), total_s]
        took = [(end_s - began_s, step) for (began_s, step), end_s in zip(self._steps, ends_s, strict=True)]
        named = "; ".join(f"{took_s:.0f} s {step}" for took_s, step in sorted(took, reverse=True)[:count])
        return f"took {total_s:.0f} s, most of it: {named}"
