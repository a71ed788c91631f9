"""`tidelog log`: inspect the files of partitions, without a broker and without changing them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli import log_repair
from tidelog.cli.app import App
from tidelog.cli.errors import CommandError, report
from tidelog.cli.options import Json
from tidelog.cli.output import print_json_array, print_line
from tidelog.cli.text import plural, size_text, timestamp_text

if TYPE_CHECKING:
    from tidelog.log.inspect import BatchRow, Problem, Row
    from tidelog.records import BatchHeader, Record

log = App(help="Inspect and repair partition files, without a broker.")

log_repair.add_to(log)

PathArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR_OR_FILE",
        exists=True,
        readable=True,
        help="A partition's file or directory, or a whole data directory.",
    ),
]


def add_to(app: App) -> None:
    app.add_typer(log, name="log")


@log.command(epilog="Example: tidelog log dump ./tidelog-data/orders-0/00000000000000000000.log --records")
def dump(
    path: PathArgument,
    records: Annotated[bool, typer.Option("--records", help="Show the records in each batch.")] = False,
    json: Json = False,
) -> None:
    """Print the contents of log, index, snapshot and epoch files.

    For a directory, it prints the log files.
    """
    if json:
        print_json_array(_documents(path, records))
        return
    for file in _files(path):
        print_line(f"{file}:")
        for row in _rows(file):
            print_line(f"  {_row_text(row)}")
            if records:
                for record in _records(file, row):
                    print_line(f"    {_record_text(record)}")


@log.command(epilog="Example: tidelog log verify ./tidelog-data")
def verify(path: PathArgument, json: Json = False) -> None:
    """Check CRCs, the order of offsets, and indexes against logs.

    The exit code is 1 if a file is damaged.
    """
    count = 0

    def problems() -> Iterator[Problem]:
        nonlocal count
        for problem in _problems(path):
            count += 1
            yield problem

    if json:
        print_json_array(_problem_document(problem) for problem in problems())
    else:
        for problem in problems():
            where = f" at {problem.position}" if problem.position >= 0 else ""
            print_line(f"{problem.path}{where}: {problem.message}")
    checked = plural(len(_directories(path)), "partition") if path.is_dir() else str(path)
    if count:
        raise CommandError(
            f"{plural(count, 'problem')} found in {checked}; a broker repairs indexes and torn ends when it starts, "
            "'tidelog log repair' the rest"
        )
    if not json:
        print_line(f"{checked} verified, no problem found")


def _directories(path: Path) -> list[Path]:
    """The directories of partitions at or below this one; not what was taken out of partitions."""
    from tidelog.log.set_aside import CUT_SUFFIX

    found = sorted({file.parent for file in path.rglob("*.log") if not file.parent.name.endswith(CUT_SUFFIX)})
    if not found:
        raise CommandError(f"{path} holds no partition: no file below it ends in .log")
    return found


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [file for directory in _directories(path) for file in sorted(directory.glob("*.log"))]


def _rows(file: Path) -> Iterator[Row]:
    from tidelog.log.inspect import dump

    try:
        yield from dump(file)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _problems(path: Path) -> Iterator[Problem]:
    from tidelog.log.inspect import BatchRow, Problem, verify

    if path.is_dir():
        for directory in _directories(path):
            try:
                yield from verify(directory)
            except ValueError as error:
                report(f"{directory}: {error}")
                yield Problem(directory, -1, str(error))
        return
    for row in _rows(path):
        if isinstance(row, Problem):
            yield row
        elif isinstance(row, BatchRow) and not row.is_valid:
            yield Problem(path, row.position, f"the CRC of the batch at offset {row.header.base_offset} is wrong")


def _records(file: Path, row: Row) -> list[Record]:
    from tidelog.log.inspect import BatchRow
    from tidelog.records import CorruptBatchError, decode_records

    if not isinstance(row, BatchRow) or not row.is_valid:
        return []
    with file.open("rb") as opened:
        opened.seek(row.position)
        content = opened.read(row.header.size_bytes)
    try:
        return decode_records(content)
    except CorruptBatchError as error:
        raise CommandError(f"{file}: the batch at offset {row.header.base_offset} can't be opened: {error}") from error


def _row_text(row: Row) -> str:
    from tidelog.log.inspect import BatchRow, Problem

    if isinstance(row, BatchRow):
        return _batch_text(row)
    if isinstance(row, Problem):
        return f"damaged from byte {row.position}: {row.message}" if row.position >= 0 else f"damaged: {row.message}"
    return ", ".join(f"{field.name} {getattr(row, field.name)}" for field in dataclasses.fields(row))


def _batch_text(row: BatchRow) -> str:
    header = row.header
    parts = [
        f"offsets {header.base_offset}-{header.last_offset}",
        f"at byte {row.position}",
        plural(header.records_count, "record"),
        size_text(header.size_bytes),
        header.compression.label,
        f"up to {timestamp_text(header.max_timestamp)}",
        f"leader epoch {header.partition_leader_epoch}",
    ]
    if header.has_producer:
        parts.append(f"producer {header.producer_id} epoch {header.producer_epoch} sequence {header.base_sequence}")
    parts += [word for word, holds in _marks(header).items() if holds]
    parts.append("CRC ok" if row.is_valid else "CRC WRONG")
    return ", ".join(parts)


def _marks(header: BatchHeader) -> dict[str, bool]:
    return {"transactional": header.is_transactional, "control": header.is_control}


def _record_text(record: Record) -> str:
    headers = f" headers {list(record.headers)!r}" if record.headers else ""
    key, value = _bytes_text(record.key), _bytes_text(record.value)
    return f"offset {record.offset}  {timestamp_text(record.timestamp)}  key {key}  value {value}{headers}"


def _bytes_text(content: bytes | None) -> str:
    """Text where it is text; what would break the line or is no UTF-8 is shown with escapes."""
    if content is None:
        return "null"
    text = content.decode(errors="backslashreplace")
    return text if text.isprintable() else repr(text)[1:-1]


def _documents(path: Path, with_records: bool) -> Iterator[dict[str, object]]:
    from tidelog.cli.record_format import record_document
    from tidelog.log.inspect import BatchRow, Problem

    for file in _files(path):
        for row in _rows(file):
            if isinstance(row, Problem):
                yield _problem_document(row)
                continue
            if not isinstance(row, BatchRow):
                yield {"file": str(file), **dataclasses.asdict(row)}
                continue
            document = {"file": str(file), "position": row.position, "crc_valid": row.is_valid, **_header(row.header)}
            if with_records:
                document["records"] = [record_document(record) for record in _records(file, row)]
            yield document


def _header(header: BatchHeader) -> dict[str, object]:
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records_count": header.records_count,
        "size_bytes": header.size_bytes,
        "partition_leader_epoch": header.partition_leader_epoch,
        "compression": header.compression.label,
        "timestamp_type": header.timestamp_type.name,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        **_marks(header),
    }


def _problem_document(problem: Problem) -> dict[str, object]:
    return {"file": str(problem.path), "position": problem.position, "problem": problem.message}
