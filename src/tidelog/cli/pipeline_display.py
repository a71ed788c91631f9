"""What `tidelog pipeline run` shows while a pipeline runs: a live panel, plain lines, or JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidelog.cli.errors import report
from tidelog.cli.text import count_text, duration_text, size_text

if TYPE_CHECKING:
    from rich.table import Table

    from tidelog.pipeline.runner import PipelineRun
    from tidelog.pipeline.versions.registry_rows import Progress


@contextmanager
def display(run: PipelineRun, *, as_json: bool) -> Iterator[None]:
    """Follow a run while the block lasts."""
    run.tell = report
    if as_json:
        run.on_progress = lambda progress: print(json.dumps(progress_document(run, progress)), flush=True)
        yield
        return
    if not sys.stdout.isatty():
        run.on_progress = lambda progress: print(progress_line(run, progress), flush=True)
        yield
        return
    from rich.console import Console
    from rich.live import Live

    with Live(_panel(run, run.progress), console=Console(), refresh_per_second=4, transient=False) as live:
        run.on_progress = lambda progress: live.update(_panel(run, progress))
        yield


def progress_document(run: PipelineRun, progress: Progress) -> dict[str, object]:
    return {
        "name": run.pipeline.name,
        "version": run.pipeline.version,
        "role": run.role,
        "batch_id": progress.batch_id,
        "rows": progress.rows,
        "rows_per_s": round(progress.rows_per_s, 1),
        "batch_ms": progress.batch_ms,
        "lag": progress.lag_rows,
        "lag_by_partition": progress.lag,
        "processed": progress.processed,
        "state_rows": progress.state_rows,
        "state_bytes": progress.state_bytes,
        "dead_letters": progress.dead_letters,
        "spark_url": run.spark_url,
        **progress.details,
    }


def progress_line(run: PipelineRun, progress: Progress) -> str:
    return (
        f"{run.pipeline.name} v{run.pipeline.version} batch {progress.batch_id}: "
        f"{count_text(round(progress.rows_per_s))} rows/s, {duration_text(progress.batch_ms / 1000)}, "
        f"lag {count_text(progress.lag_rows)}, state {count_text(progress.state_rows)} rows, "
        f"dead letters {count_text(progress.dead_letters)}"
    )


def _panel(run: PipelineRun, progress: Progress) -> Table:
    from rich import box
    from rich.table import Table

    title = f"{run.pipeline.name} version {run.pipeline.version} ({run.role})"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    if progress.batch_id < 0:
        table.add_row("", "starting Spark ..." if run.spark_url is None else "waiting for the first batch")
    else:
        table.add_row("batch", f"{progress.batch_id}, {duration_text(progress.batch_ms / 1000)}")
        table.add_row("rows", f"{count_text(round(progress.rows_per_s))}/s, {count_text(progress.rows)} in this run")
        table.add_row("lag", count_text(progress.lag_rows))
        table.add_row("state", f"{count_text(progress.state_rows)} rows, {size_text(progress.state_bytes)}")
        table.add_row("dead letters", f"{count_text(progress.dead_letters)} in {run.dead_letters}")
    if run.spark_url is not None:
        table.add_row("Spark's page", run.spark_url)
    table.add_row("log", str(run.log_file))
    table.add_row("", "Ctrl-C stops after the batch that runs")
    return table
