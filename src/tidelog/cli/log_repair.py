"""`tidelog log repair`: repair the files of partitions, if a person says so.

What always holds: without `--execute` nothing is changed, and with it nothing is destroyed; every lost offset is named.
The exit code is 0 if everything is sound or was repaired, and 1 if something still needs repair.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.errors import EXIT_FAILED, CommandError, report
from tidelog.cli.options import Json
from tidelog.cli.output import print_json_array, print_line
from tidelog.cli.text import plural, size_text

if TYPE_CHECKING:
    from tidelog.log.repair_plan import Action, PartitionPlan


def add_to(log: typer.Typer) -> None:
    log.command("repair", epilog="Example: tidelog log repair ./tidelog-data/broker-1/orders-0 --execute")(repair)


def repair(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="A partition's directory, or a whole data directory. No broker may be using it.",
        ),
    ],
    execute: Annotated[
        bool, typer.Option("--execute", help="Repair; without this, only show what would be done.")
    ] = False,
    json: Json = False,
) -> None:
    """Remove damaged parts of partitions; keep the rest and its offsets.

    Shows what it would do; --execute does it. Removed parts are kept beside the partition in a directory that ends in
    -cut, and lost offsets are listed. The exit code is 0 if everything is sound or was repaired, and 1 if --execute is
    needed or a repair failed.
    """
    from tidelog.log.errors import DataDirectoryError
    from tidelog.log.repair import locked

    partitions = _partitions(directory)
    needed = failed = 0

    def documents() -> Iterator[dict[str, object]]:
        nonlocal needed, failed
        for partition in partitions:
            plan, kept_in, problem = _repair_one(partition, execute)
            needed += plan is not None and plan.is_needed
            failed += bool(problem)
            yield _document(partition, plan, kept_in, problem, is_executed=execute)

    try:
        with ExitStack() as locks:
            for parent in sorted({partition.parent for partition in partitions}):
                locks.enter_context(locked(parent, changes=execute))
            if json:
                print_json_array(documents())
            else:
                for document in documents():
                    _print(document)
    except DataDirectoryError as error:
        raise CommandError(str(error)) from error
    _conclude(len(partitions), needed, failed, execute=execute, json=json)


def _partitions(directory: Path) -> list[Path]:
    from tidelog.common.checks import partition_of_directory

    found = {file.parent for file in directory.rglob("*") if file.suffix in (".log", ".index", ".timeindex")}
    if directory in found:
        return [directory]
    partitions = sorted(path for path in found if partition_of_directory(path.name) is not None)
    if not partitions:
        raise CommandError(f"{directory} holds no partition: no directory below it has a name like orders-0 and a log")
    return partitions


def _repair_one(partition: Path, execute: bool) -> tuple[PartitionPlan | None, Path | None, str]:
    from tidelog.log import repair as repairing
    from tidelog.log.inspect import verify

    try:
        plan = repairing.examine(partition)
        if not execute or not plan.is_needed:
            return plan, None, ""
        kept_in = repairing.execute(plan)
        left = next(verify(partition), None)
        return plan, kept_in, "" if left is None else f"{left.path} is still damaged: {left.message}"
    except OSError as error:
        return None, None, f"{error.filename or partition}: {error.strerror or error}"


def _document(
    partition: Path, plan: PartitionPlan | None, kept_in: Path | None, problem: str, *, is_executed: bool
) -> dict[str, object]:
    actions = [] if plan is None else plan.actions
    return {
        "partition": str(partition),
        "actions": [{**dataclasses.asdict(action), "path": str(action.path)} for action in actions],
        "log_end_offset": -1 if plan is None else plan.end_offset,
        "executed": bool(actions) and is_executed and not problem,
        "kept_in": None if kept_in is None else str(kept_in),
        "problem": problem or None,
    }


def _print(document: dict[str, object]) -> None:
    actions = document["actions"]
    assert isinstance(actions, list)
    if document["problem"]:
        report(f"{document['partition']}: {document['problem']}")
    if not actions:
        return
    print_line(f"{document['partition']}:")
    for fields in actions:
        print_line(f"  {_action_text(fields)}")
    if document["kept_in"]:
        print_line(f"  what was taken out is in {document['kept_in']}")


def _action_text(fields: dict[str, object]) -> str:
    from tidelog.log.repair_plan import UNKNOWN, Action

    action: Action = Action(**{**fields, "path": Path(str(fields["path"]))})  # type: ignore[arg-type] # its own fields
    where = f" at byte {action.position}" if action.position != UNKNOWN else ""
    size = f" {size_text(action.size_bytes)}" if action.size_bytes else ""
    parts = [f"{action.path.name}{where}: {action.what}{size}: {action.reason}"]
    if action.last_lost_offset != UNKNOWN:
        parts.append(f"offsets {action.first_lost_offset} to {action.last_lost_offset} are lost")
    elif action.first_lost_offset != UNKNOWN:
        parts.append(f"what began at offset {action.first_lost_offset} is lost")
    if action.lost_records_count != UNKNOWN:
        parts.append(f"{plural(action.lost_records_count, 'record')} by the header of the batch")
    return "; ".join(parts)


def _conclude(count: int, needed: int, failed: int, *, execute: bool, json: bool) -> None:
    checked = plural(count, "partition")
    if failed:
        raise CommandError(f"{failed} of {checked} can't be repaired")
    if needed and not execute:
        raise CommandError(f"{needed} of {checked} can be repaired: run it again with --execute", EXIT_FAILED)
    if not json:
        print_line(f"{needed} of {checked} repaired" if needed else f"{checked} looked through, nothing to repair")
