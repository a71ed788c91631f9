"""What commands print: tables, JSON documents, plain lines.

What always holds: results go to standard output, all else to standard error; a pipe gets no colour and no box drawing,
with columns that can be cut by spaces; `--json` prints exactly one document. rich is imported only for a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence


def print_json(document: object) -> None:
    print(json.dumps(document, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_json_array(documents: Iterable[object]) -> None:
    """One document of any length, an element a line; what goes wrong on the way leaves it closed and readable."""
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
        _print_rich_table(columns, rows, title, numeric)
        return
    if title:
        print(title)
    header = [column.upper().replace(" ", "-") for column in columns]
    widths = [max(len(cells[index]) for cells in [header, *rows]) for index in range(len(columns))]
    for cells in [header, *rows]:
        aligned = [
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        print("  ".join(aligned).rstrip())


def _print_rich_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str, numeric: Sequence[str]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    for cells in rows:
        table.add_row(*(escape(cell) for cell in cells))
    Console().print(table)


def confirm(question: str) -> bool:
    """Ask on a terminal; without one whoever runs the command has decided already."""
    if not sys.stdin.isatty():
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
