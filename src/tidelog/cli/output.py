"""What commands print: tables, JSON documents, plain lines.

What always holds: results go to standard output, everything else to standard error; a pipe gets no colour and no box
drawing, only columns separated by spaces; `--json` prints exactly one document. rich is imported only for a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

from tidelog.cli.errors import EXIT_USAGE, CommandError

_GAP = "  "
_DRAWN_GAP = 3  # between the columns of a drawn table: padding, divider, padding
_DRAWN_EDGES = 2
FOLDED_WIDTH_MIN = 16  # a column narrower than this is no pleasure to read


def print_json(document: object) -> None:
    print(json.dumps(document, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_json_array(documents: Iterable[object]) -> None:
    """One document of any length, one element per line; an error halfway still leaves valid JSON."""
    separator = "[\n"
    try:
        for document in documents:
            print(separator + json.dumps(document, ensure_ascii=False), end="")
            separator = ",\n"
    finally:
        print("[]" if separator == "[\n" else "\n]")


def print_line(text: str) -> None:
    print(text)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", numeric: Sequence[str] = ()
) -> None:
    """Rows under their columns; those named in `numeric` are aligned to the right."""
    if sys.stdout.isatty():
        _print_for_terminal(columns, rows, title, numeric)
        return
    if title:
        print(title)
    header = [column.upper().replace(" ", "-") for column in columns]
    widths = _widths(header, rows)
    for cells in [header, *rows]:
        aligned = [
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        print("  ".join(aligned).rstrip())


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(cells[index]) for cells in [header, *rows]) for index in range(len(header))]


def _print_for_terminal(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str, numeric: Sequence[str]
) -> None:
    """A table when it fits, or fits with its widest column folded; else every row as a block of lines."""
    from rich.console import Console

    console = Console(highlight=False)
    widths = _widths(columns, rows)
    excess = sum(widths) + _DRAWN_GAP * (len(columns) - 1) + _DRAWN_EDGES - console.width
    widest = max(range(len(columns)), key=lambda index: widths[index])
    if excess > 0 and widths[widest] - excess < FOLDED_WIDTH_MIN:
        _print_blocks(columns, rows, title)
        return
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        justify: Literal["right", "left"] = "right" if column in numeric else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=excess <= 0 or index != widest)
    for cells in rows:
        table.add_row(*(escape(cell) for cell in cells))
    console.print(table)


def _print_blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    if title:
        print(title)
    width = max(map(len, columns))
    for cells in rows:
        print()
        for column, cell in zip(columns, cells, strict=True):
            print(f"{column.ljust(width)}{_GAP}{cell}".rstrip())


def confirm(question: str) -> bool:
    """Ask on a terminal. Without one nobody can answer, so the command must have been given --yes."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} There is no terminal to ask on: add --yes to confirm", EXIT_USAGE)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
