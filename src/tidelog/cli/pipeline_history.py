"""`tidelog pipeline history`: the versions of a pipeline, their runs, and the switches between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.cli.options import Json
from tidelog.cli.output import print_json, print_table
from tidelog.cli.pipeline import DEFAULT_STATE, State, Target, open_registry, pipeline, pipeline_name
from tidelog.cli.text import count_text, plural, timestamp_text

if TYPE_CHECKING:
    from tidelog.pipeline.versions.registry_rows import Event, Offsets, Run, Switch


@pipeline.command(epilog="Example: tidelog pipeline history revenue --json | jq '.switches'")
def history(target: Target, state: State = DEFAULT_STATE, json: Json = False) -> None:
    """Show the versions, runs and switches of a pipeline."""
    with open_registry(state) as registry:
        name = pipeline_name(registry, target)
        versions = registry.versions(name)
        runs, switches, events = registry.runs(name), registry.switches(name), registry.history(name)
        live = registry.live_version(name)
    if json:
        print_json(
            {
                "name": name,
                "live_version": live,
                "versions": [
                    {
                        "version": version.version,
                        "is_live": version.is_live,
                        "file": version.file,
                        "created_ms": version.created_ms,
                        "processed": version.processed,
                    }
                    for version in versions
                ],
                "runs": [_run_document(run) for run in runs],
                "switches": [switch_document(switch) for switch in switches],
                "events": [_event_document(event) for event in events],
            }
        )
        return
    rows = [
        [
            timestamp_text(event.at_ms),
            event.kind,
            "-" if event.version is None else str(event.version),
            f"{event.user}@{event.host}",
            _event_text(event),
        ]
        for event in events
    ]
    print_table(["time", "event", "version", "by", "details"], rows, numeric=["version"])


def _run_document(run: Run) -> dict[str, object]:
    return {
        "run_id": run.run_id,
        "version": run.version,
        "role": run.role,
        "pid": run.pid,
        "host": run.host,
        "user": run.user,
        "started_ms": run.started_ms,
        "ended_ms": run.ended_ms,
        "outcome": run.outcome,
        "error": run.error,
        "rows": run.progress.rows,
        "processed": run.progress.processed,
    }


def switch_document(switch: Switch) -> dict[str, object]:
    return {
        "switch_id": switch.switch_id,
        "name": switch.pipeline,
        "kind": switch.kind,
        "from_version": switch.from_version,
        "to_version": switch.to_version,
        "step": switch.step,
        "outcome": switch.outcome,
        "started_ms": switch.started_ms,
        "finished_ms": switch.finished_ms,
        "user": switch.user,
        "host": switch.host,
        "old_offsets": switch.data.get("old_offsets"),
        "new_offsets": switch.data.get("new_offsets"),
        "outputs": switch.data.get("outputs", {}),
        "kept": switch.data.get("kept", {}),
    }


def _event_document(event: Event) -> dict[str, object]:
    return {
        "at_ms": event.at_ms,
        "kind": event.kind,
        "version": event.version,
        "run_id": event.run_id,
        "switch_id": event.switch_id,
        "user": event.user,
        "host": event.host,
        "details": dict(event.details),
    }


def _event_text(event: Event) -> str:
    details = event.details
    if "outputs" in details:
        changed = "; ".join(f"{name}: {changed_text(each)}" for name, each in details["outputs"].items())
        stood = {topic: dict(rows) for topic, rows in (details.get("old_offsets") or {}).items()}
        return f"from version {details['from']} at {offsets_text(stood)}; {changed}"
    if "from" in details:
        return f"from version {details['from']}"
    return str(details.get("error") or details.get("role") or details.get("file") or "")


def changed_text(changed: Mapping[str, int]) -> str:
    if "pointer" in changed:
        return f"readers are pointed to the table of version {changed['pointer']}"
    return (
        f"{count_text(changed['added'])} keys added, {count_text(changed['changed'])} changed, "
        f"{count_text(changed['missing'])} removed, {count_text(changed['equal'])} as before"
    )


def offsets_text(offsets: Offsets) -> str:
    parts = [
        f"{topic}-{partition} {offset}" for topic, rows in offsets.items() for partition, offset in sorted(rows.items())
    ]
    if len(parts) > 8:
        total = sum(sum(rows.values()) for rows in offsets.values())
        return f"{plural(total, 'record')} of {plural(len(parts), 'partition')}"
    return ", ".join(parts) or "no offset"
