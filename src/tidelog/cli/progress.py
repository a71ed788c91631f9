"""How far long work is: a bar on standard error while a person watches, and nothing otherwise.

What always holds: standard output is left to results, so a bar is shown only where it does not run through them; it is
gone when the work ends, however it ends. rich is imported only when there is something to show.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[float, str], None]
"""Takes how much is done, in the unit of the total, and a few words."""


def is_watched(*, prints: bool = False) -> bool:
    """Whether somebody sees a bar; one that `prints` results meanwhile would run through it on a terminal."""
    return sys.stderr.isatty() and not (prints and sys.stdout.isatty())


@contextmanager
def progress(words: str, total: float | None, *, shown: bool, in_bytes: bool = False) -> Iterator[Advance]:
    """A bar up to the total, or without an end when that is not known."""
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
    """Tells each step of long work, with what is done now and since when below while a person watches."""
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
