"""`tidelog replay`: a range of a topic's events, once more, into another topic.

What always holds: Spark is imported only when there is something to replay; the command can be stopped and killed at
any time, and the same command resumes where it stopped.
"""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.app import App
from tidelog.cli.errors import EXIT_INTERRUPTED, CommandError
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, checked, topic_name
from tidelog.cli.output import print_json, print_line, print_table
from tidelog.cli.pipeline import DEFAULT_STATE, Conf, Master, State, parse_conf, pipeline_errors, require_spark
from tidelog.cli.progress import Advance, is_watched, progress
from tidelog.cli.text import count_text, duration_text, plural, timestamp_text

if TYPE_CHECKING:
    from tidelog.pipeline.event_replay.replay import EventReplay, ReplayProgress
    from tidelog.pipeline.event_replay.state import ReplayState

SAMPLE_ROWS = 5
_TEXT_LETTERS = 60


def add_to(app: App) -> None:
    app.command(
        epilog="Example: tidelog replay orders --from -2h --into orders-repaired --map fixes.py:repair --rate 20k"
    )(replay)


def replay(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to replay.", callback=topic_name)],
    into: Annotated[str, typer.Option("--into", metavar="TOPIC", help="The topic to write to.", callback=topic_name)],
    first: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Where to start: earliest, an offset, 0:100,1:250 (partition:offset), an ISO 8601 time, or -2h.",
        ),
    ] = "earliest",
    last: Annotated[
        str,
        typer.Option(
            "--to", metavar="PLACE", help="Where to stop, in the same notation; latest is the current end of the topic."
        ),
    ] = "latest",
    filter_: Annotated[
        str | None,
        typer.Option("--filter", metavar="SQL", help="Only events that match this condition, such as \"key = 'ann'\"."),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", help="A function that takes and returns a DataFrame."),
    ] = None,
    map_: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="FILE.py:FUNCTION",
            help="A function applied to each event; rejected events become dead letters.",
        ),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="ROWS/S", help="At most this many rows per second, such as 5000 or 20k.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="HH:MM", help="Start at this time of day.")] = None,
    between: Annotated[
        str | None, typer.Option(metavar="HH:MM-HH:MM", help="Run only in these hours, and pause outside them.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the replay; default: derived from the options."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run a finished replay again.")] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create the target topic if it is missing, with as many partitions.")
    ] = False,
    by_key: Annotated[
        bool,
        typer.Option("--by-key", help="Choose partitions by key, even if both topics have the same number."),
    ] = False,
    same_topic: Annotated[bool, typer.Option("--same-topic", help="Allow replaying a topic into itself.")] = False,
    dead_letters: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="The topic for rejected events; default: INTO.dead-letters."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be replayed, with a few sample rows, and write nothing.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
    state: State = DEFAULT_STATE,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Copy a range of a topic into another topic, exactly once.

    Runs on Spark. Each event carries its origin in its headers. The range is fixed when the replay starts; if it is
    interrupted, even by kill -9, the same command resumes it.
    """
    if name is not None and (problem := _name_problem(name)):
        raise typer.BadParameter(problem, param_hint="'--name'")
    require_spark()
    with pipeline_errors():
        from tidelog.common.interruption import Interruption
        from tidelog.pipeline.event_replay.hours import QuietHours, next_time, parse_time_of_day
        from tidelog.pipeline.event_replay.pace import parse_rate
        from tidelog.pipeline.event_replay.replay import EventReplay, ReplayOptions
        from tidelog.pipeline.event_replay.state import ReplaySpec

        options = ReplayOptions(
            bootstrap=bootstrap,
            state_dir=state,
            master=master,
            name=name,
            rate=None if rate is None else checked(parse_rate, rate, "--rate"),
            hours=None if between is None else checked(QuietHours.parse, between, "--between"),
            not_before=(
                None if at is None else next_time(checked(parse_time_of_day, at, "--at"), datetime.datetime.now())
            ),
            same_topic=same_topic,
            create=create,
            again=again,
            conf=parse_conf(conf),
        )
        spec = ReplaySpec(topic, into, first, last, filter_, transform, map_, dead_letters, by_key)
        with (
            Interruption().caught() as interruption,
            EventReplay(spec, options, is_stopping=lambda: interruption.has_come) as work,
        ):
            if dry_run:
                _show_plan(work, json=json)
            else:
                _run(work, json=json)


def _name_problem(name: str) -> str | None:
    from tidelog.common.checks import topic_name_problem

    return (
        None if topic_name_problem(name) is None else f"{name!r} can't be a directory name; use letters, digits and -"
    )


# Running


def _run(work: EventReplay, *, json: bool) -> None:
    from tidelog.pipeline.event_replay.replay import ReplayStoppedError

    begun = work.prepare()
    before, was_finished = begun.offsets_done, begun.finished_ms is not None
    if not json:
        _tell_beginning(work, begun)
    started_s = time.monotonic()
    try:
        with progress(
            "starting Spark", begun.offsets_total or None, shown=is_watched() and not was_finished
        ) as advance:
            done = work.run(lambda now: _show_progress(now, advance))
    except ReplayStoppedError:
        share = begun.offsets_done / max(begun.offsets_total, 1)
        raise CommandError(f"stopped at {share:.0%}; the same command resumes from there", EXIT_INTERRUPTED) from None
    seconds = time.monotonic() - started_s
    if json:
        print_json(_document(work, done) | {"seconds": round(seconds, 3), "offsets_before": before})
    elif was_finished:
        print_line("nothing left to do; --again runs it again")
    else:
        print_line(f"replayed {_counts_text(work, done)} in {duration_text(seconds)}")


def _tell_beginning(work: EventReplay, state: ReplayState) -> None:
    spec = work.spec
    print_line(
        f"replay {work.name}: {plural(state.offsets_total, 'offset')} of {spec.topic}, "
        f"from {spec.first} to {spec.last} as of {timestamp_text(state.begun_ms)}, into {spec.into}"
    )
    for note in work.notes:
        print_line(f"  {note}")
    if state.finished_ms is not None:
        print_line(f"  finished at {timestamp_text(state.finished_ms)}: {_counts_text(work, state)}")
    elif state.offsets_done:
        print_line(f"  resuming at {state.offsets_done / max(state.offsets_total, 1):.0%}")


def _counts_text(work: EventReplay, state: ReplayState) -> str:
    counts = state.counts
    text = plural(counts.read, "event")
    if counts.written != counts.read:
        text += f", {count_text(counts.written)} written"
    if counts.refused:
        text += f", {count_text(counts.refused)} rejected (see topic {work.dead_letters})"
    return text


def _show_progress(now: ReplayProgress, advance: Advance) -> None:
    if now.waiting_until is not None:
        words = f"waiting until {now.waiting_until:%H:%M}"
    else:
        words = "replaying"
        if now.offsets_per_second is not None:
            words += f", {count_text(round(now.offsets_per_second))} rows/s"
        if now.left_s is not None:
            words += f", {duration_text(now.left_s)} left"
    advance(now.offsets_done, words)


def _document(work: EventReplay, state: ReplayState) -> dict[str, Any]:
    return {
        "name": work.name,
        "topic": work.spec.topic,
        "into": work.spec.into,
        "from": work.spec.first,
        "to": work.spec.last,
        "ranges": {str(partition): list(each) for partition, each in state.ranges.items()},
        "offsets": state.offsets_total,
        "offsets_done": state.offsets_done,
        "keeps_partitions": work.keeps_partitions,
        "read": state.counts.read,
        "written": state.counts.written,
        "refused": state.counts.refused,
        "dead_letters": work.dead_letters if state.counts.refused else None,
        "finished_ms": state.finished_ms,
        "notes": work.notes,
    }


# Showing only


def _show_plan(work: EventReplay, *, json: bool) -> None:
    state = work.prepare(keep=False)
    sample = work.sample(SAMPLE_ROWS)
    rate = work.options.rate
    if json:
        print_json(_document(work, state) | {"sample": [_row_document(row) for row in sample]})
        return
    _tell_beginning(work, state)
    rows = [
        [str(partition), count_text(each.start), count_text(each.end), count_text(each.size)]
        for partition, each in state.ranges.items()
    ]
    print_table(["partition", "from", "to", "offsets"], rows, numeric=["partition", "from", "to", "offsets"])
    print_line(
        "each event keeps its partition number"
        if work.keeps_partitions
        else "each event goes to the partition of its key"
    )
    if rate is not None:
        print_line(f"at {count_text(round(rate))} rows/s it takes at least {duration_text(state.offsets_total / rate)}")
    if sample:
        shown = [[str(row["topic"]), _text(row["key"]), _text(row["value"])] for row in sample]
        print_table(["topic", "key", "value"], shown, title="the first events as they would be written:")
    print_line("nothing was written")


def _text(content: bytes | None) -> str:
    text = "-" if content is None else bytes(content).decode("utf-8", errors="replace")
    return text if len(text) <= _TEXT_LETTERS else f"{text[: _TEXT_LETTERS - 1]}…"


def _row_document(row: dict[str, Any]) -> dict[str, Any]:
    def text(content: bytes | None) -> str | None:
        return None if content is None else bytes(content).decode("utf-8", errors="replace")

    headers = [[header["key"], text(header["value"])] for header in row["headers"] or ()]
    return {
        "topic": row["topic"],
        "partition": row["partition"],
        "key": text(row["key"]),
        "value": text(row["value"]),
    } | {"headers": headers}
