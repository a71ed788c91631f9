"""The report of a run: one HTML page to attach to a release, with the verdict first.

What always holds: the page is one file that loads nothing and runs no script; it follows the reader's light or dark
setting and fits a phone. Whatever comes from a run (names, errors, values of records) is escaped, so that no content
becomes markup. The page shows what is in run.json, faults.jsonl and verdict.json, and computes nothing anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from tidelog.torture.kinds import meaning_of
from tidelog.torture.report_plot import clock_text, family_of, timeline
from tidelog.torture.verdict import (
    ANOMALIES,
    CLEAN,
    FAULTS_FILE,
    REPORT_FILE,
    Availability,
    Fault,
    ShownAnomaly,
    ShownOperation,
    Verdict,
)

FAULTS_LISTED_MAX: Final = 2000

_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2330; --soft: #5d6677; --line: #dde2ea; --panel: #f5f7fa;
  --good: #18794e; --good-paper: #e3f5ec; --bad: #b42318; --bad-paper: #fdeae8; --warn: #8a5a00; --warn-paper: #fdf3dc;
  --blue: #2f5fd0; --w-all: #3fa873; --w-some: #e0a03a; --w-none: #d6453a; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --ink: #e4e8ef; --soft: #98a2b3; --line: #2d3440;
  --panel: #1b2028; --good: #6cd6a0; --good-paper: #143126; --bad: #ff9b8f; --bad-paper: #3b1a18; --warn: #f0c26a;
  --warn-paper: #352a12; --blue: #8fb0ff; --w-all: #2f8a5c; --w-some: #b9802a; --w-none: #d6554a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1rem 4rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; margin: 0 0 .8rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; } p { margin: .4rem 0; }
.soft { color: var(--soft); } small { color: var(--soft); }
.verdict { border-radius: 10px; padding: .9rem 1.1rem; } .verdict strong { font-size: 1.25rem; display: block; }
.clean { background: var(--good-paper); color: var(--good); }
.anomalies { background: var(--bad-paper); color: var(--bad); }
.inconclusive { background: var(--warn-paper); color: var(--warn); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1rem 0 0; }
.figures div { background: var(--panel); border-radius: 8px; padding: .55rem .8rem; }
.figures dt { font-size: .82rem; color: var(--soft); } .figures dd { margin: 0; font-size: 1.15rem; font-weight: 600; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; } td.n, th.n { text-align: right; white-space: nowrap; }
td:first-child { white-space: nowrap; }
code, pre { font: .86rem/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: var(--panel); border-radius: 8px; padding: .7rem .9rem; overflow-x: auto; white-space: pre-wrap; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--blue); }
.anomaly { border-left: 3px solid var(--bad); padding: .1rem 0 .1rem .9rem; margin: .9rem 0; }
.plot { overflow-x: auto; } svg { min-width: 40rem; width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 13px; } svg .rule { stroke: var(--line); }
svg .tick { stroke: var(--line); stroke-dasharray: 2 4; }
svg .fault { fill-opacity: .75; } svg .l-p50 { stroke: var(--blue); } svg .l-max { stroke: var(--w-none); }
svg polyline { fill: none; stroke-width: 1.4; stroke-linejoin: round; } svg .dot { fill: var(--soft); stroke: none; }
.w-all { fill: var(--w-all); background: var(--w-all); } .w-some { fill: var(--w-some); background: var(--w-some); }
.w-none { fill: var(--w-none); background: var(--w-none); }
.f-killed { fill: #c0392b; background: #c0392b; } .f-paused { fill: #8e5bb5; background: #8e5bb5; }
.f-restarted { fill: #3f7fc1; background: #3f7fc1; } .f-network { fill: #d9822b; background: #d9822b; }
.f-disk { fill: #8d6e4a; background: #8d6e4a; } .f-clock { fill: #2a9d8f; background: #2a9d8f; }
.f-moved { fill: #7a9a2e; background: #7a9a2e; } .f-clients { fill: #c2568e; background: #c2568e; }
.f-other { fill: #7b8494; background: #7b8494; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em; }
.key.p50 { background: var(--blue); } .key.max { background: var(--w-none); } .keys span { margin-right: 1.1em; }
@media print { details { display: block; } body { max-width: none; } }
""".strip()


def write_report(verdict: Verdict, directory: Path) -> Path:
    """Write the page into the directory of the run, whole or not at all."""
    path = directory / REPORT_FILE
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(render(verdict), encoding="utf-8")
    os.replace(partial, path)
    return path


def render(verdict: Verdict) -> str:
    """The page."""
    title = f"Torture of {verdict.run.get('version') or verdict.run['cluster']}"
    sections = [
        _headline(verdict, title),
        *_anomalies(verdict),
        *_what_was_run(verdict.run),
        *_over_time(verdict),
        *_workloads(verdict),
        *_faults(verdict.faults),
        *_repeat(verdict.run),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def headline(verdict: Verdict) -> str:
    """The verdict in one sentence, the same on the terminal."""
    amount = f"{_count(verdict.acknowledged, 'acknowledged send')} and {_count(len(verdict.faults), 'fault')}"
    if verdict.outcome == CLEAN:
        return f"No anomaly in {amount}."
    if verdict.outcome == ANOMALIES:
        count = verdict.anomaly_count
        return f"{count:,} {'anomaly' if count == 1 else 'anomalies'} in {amount}."
    return f"Inconclusive: {'; '.join(verdict.reasons)}."


def _headline(verdict: Verdict, title: str) -> str:
    run, parts = verdict.run, [f"<h1>{escape(title)}</h1>"]
    parts.append(f'<div class="verdict {verdict.outcome}"><strong>{escape(headline(verdict))}</strong>')
    if verdict.outcome == ANOMALIES and verdict.reasons:
        parts.append(f"<p>{escape('; '.join(verdict.reasons))}.</p>")
    if ended := run.get("ended_by"):
        parts.append(f"<p>{escape(_sentence(ended))}</p>")
    parts.append("</div>")
    figures = [
        ("acknowledged", f"{verdict.acknowledged:,}"),
        ("faults", f"{len(verdict.faults):,}"),
        ("time with faults", clock_text(run.get("fault_seconds") or 0)),
        *_availability_figures(verdict.availability),
    ]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in figures)
    parts.append(f'<dl class="figures">{cells}</dl>')
    return "\n".join(parts)


def _availability_figures(availability: Availability | None) -> list[tuple[str, str]]:
    if availability is None:
        return []
    return [
        ("availability", f"{availability.share:.2%}"),
        ("longest gap", f"{availability.longest_gap_s:.1f} s"),
        ("p99 of a write", milliseconds(availability.p99_ms)),
    ]


def milliseconds(value_ms: float | None) -> str:
    """'4.2 ms', '1.30 s', or '-' where nothing was measured."""
    if value_ms is None:
        return "-"
    return f"{value_ms / 1000:.2f} s" if value_ms >= 1000 else f"{value_ms:.1f} ms"


# Anomalies


def _anomalies(verdict: Verdict) -> Iterator[str]:
    if not verdict.kinds:
        return
    yield "<h2>Anomalies</h2>"
    for kind, count in verdict.kinds.items():
        shown = [anomaly for anomaly in verdict.anomalies if anomaly.kind == kind]
        yield f"<h3>{escape(kind)}: {count:,}</h3>"
        yield f'<p class="soft">{escape(meaning_of(kind))}</p>'
        for anomaly in shown:
            yield from _anomaly(anomaly)
        if count > len(shown):
            yield f'<p class="soft">{count - len(shown):,} more of this kind are not shown.</p>'


def _anomaly(anomaly: ShownAnomaly) -> Iterator[str]:
    where = " ".join(part for part in (anomaly.workload, anomaly.key) if part)
    yield f'<div class="anomaly"><p><strong>{escape(where)}</strong> {escape(anomaly.detail)}</p>'
    if anomaly.operations:
        yield _table(
            ("process", "operation", "outcome", "from", "to", "what"),
            [_operation_cells(operation) for operation in anomaly.operations],
            numeric=("from", "to"),
            code=("what",),
        )
    yield "</div>"


def _operation_cells(operation: ShownOperation) -> tuple[str, ...]:
    what = f"{operation.events} {operation.error}".strip()
    times = (f"{operation.start_s:.6f} s", f"{operation.end_s:.6f} s")
    return (operation.process, operation.f, operation.outcome, *times, what)


# What was run


def _what_was_run(run: Mapping[str, Any]) -> Iterator[str]:
    machine, settings = run.get("machine") or {}, run.get("settings") or {}
    replicas = f"{run['replication_factor']} replicas of each partition, " if "replication_factor" in run else ""
    rows = [
        ("cluster", run["cluster"]),
        ("version under test", run.get("version")),
        ("brokers", None if settings.get("bootstrap") else settings.get("brokers")),
        ("replication", f"{replicas}min.insync.replicas={run['min_isr']}" if "min_isr" in run else None),
        ("clients and checker", f"Tidelog {run['tidelog']}" if run.get("tidelog") else None),
        ("seed", run["seed"]),
        ("started", run.get("started")),
        ("ended", run.get("ended")),
        ("workloads", ", ".join(run["workloads"])),
        ("rate of each workload", _rate_text(settings.get("rate"))),
        ("kinds of faults", ", ".join(run.get("faults") or ()) or "none"),
        ("time between faults", f"{settings['pause_s']:g} s on average" if "pause_s" in settings else None),
        ("machine", ", ".join(f"{value}" for value in machine.values())),
    ]
    yield "<h2>What was run</h2>"
    cells = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in rows
        if value not in (None, "")
    )
    yield f'<div class="wide"><table>{cells}</table></div>'
    left_out = left_out_by_reason(run.get("left_out") or ())
    if left_out:
        yield "<h3>Left out</h3>"
        yield "<p>This run says nothing about these, because they were not possible here:</p>"
        items = "".join(f"<li>{escape(', '.join(those))}: {escape(why)}</li>" for why, those in left_out.items())
        yield f"<ul>{items}</ul>"
    notes = run.get("notes") or []
    if notes:
        yield "<h3>Notes</h3><ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return "its own"
    return f"{rate:,g} records a second" if rate else "as fast as it can"


def left_out_by_reason(left_out: Iterable[Mapping[str, str]]) -> dict[str, list[str]]:
    """What could not be done, by the reason: many kinds of faults may lack the same thing."""
    reasons: dict[str, list[str]] = {}
    for row in left_out:
        reasons.setdefault(row["why"], []).append(row["what"])
    return reasons


# Over time


def _over_time(verdict: Verdict) -> Iterator[str]:
    availability = verdict.availability
    yield "<h2>Availability and latency over time</h2>"
    if availability is None:
        yield "<p>The workload <code>probe</code> did not run, so availability was not measured.</p>"
    else:
        yield (
            f"<p>One record at a time was written to each of some partitions with acks=all. All of them took writes in "
            f"{availability.seconds_all_partitions:,} of {availability.seconds:,} seconds, none did in "
            f"{availability.seconds_without_writes:,}; availability is the share over all seconds and partitions, "
            f"{availability.share:.2%}. The longest that a partition took no write was "
            f"{availability.longest_gap_s:.1f} s. Latency of acknowledged writes: median "
            f"{milliseconds(availability.p50_ms)}, p99 {milliseconds(availability.p99_ms)}, slowest "
            f"{milliseconds(availability.max_ms)}.</p>"
        )
    series = availability.series if availability is not None else ()
    yield f'<div class="plot">{timeline(series, verdict.faults, verdict.run.get("total_seconds") or 0)}</div>'
    keys = [
        ("w-all", "all partitions took writes"),
        ("w-some", "some did not"),
        ("w-none", "none did"),
        ("p50", "median latency"),
        ("max", "slowest write"),
    ]
    if series:
        yield (
            '<p class="keys"><small>'
            + "".join(f'<span><i class="key {key}"></i>{text}</span>' for key, text in keys)
            + "</small></p>"
        )


# Workloads


def _workloads(verdict: Verdict) -> Iterator[str]:
    yield "<h2>Workloads</h2>"
    rows = []
    for workload in verdict.workloads:
        found = sum(workload.kinds.values())
        counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in sorted(workload.counts.items()))
        rows.append((workload.name, f"{workload.acknowledged:,}", f"{workload.restarts:,}", f"{found:,}", counts))
    numeric = ("acknowledged", "restarts", "anomalies")
    yield _table(("workload", "acknowledged", "restarts", "anomalies", "counted by the checker"), rows, numeric=numeric)
    restarts = verdict.run.get("restart_notes") or []
    if restarts:
        yield "<details><summary>Clients that were started again</summary><ul>"
        yield "".join(f"<li>{escape(note)}</li>" for note in restarts)
        yield "</ul></details>"


# Faults


def _faults(faults: Sequence[Fault]) -> Iterator[str]:
    yield "<h2>Faults</h2>"
    if not faults:
        yield "<p>Nothing was broken.</p>"
        return
    kinds: dict[str, list[Fault]] = {}
    for fault in faults:
        kinds.setdefault(fault.kind, []).append(fault)
    rows = []
    for kind, those in sorted(kinds.items(), key=lambda item: -len(item[1])):
        lasted = [fault.end_s - fault.start_s for fault in those if fault.end_s is not None]
        longest, total = (f"{max(lasted):.1f} s", f"{sum(lasted):.0f} s") if lasted else ("-", "-")
        rows.append((kind, f"{len(those):,}", total, longest))
    yield _table(("kind", "count", "in all", "longest"), rows, numeric=("count", "in all", "longest"), marks=True)
    listed = faults[:FAULTS_LISTED_MAX]
    yield f"<details><summary>All {len(faults):,} faults in order</summary>"
    if len(listed) < len(faults):
        yield f"<p>The first {len(listed):,}; all are in {FAULTS_FILE}.</p>"
    yield _table(
        ("from", "to", "kind", "target", "detail"),
        [
            (
                f"{fault.start_s:.1f} s",
                "-" if fault.end_s is None else f"{fault.end_s:.1f} s",
                fault.kind,
                fault.target,
                fault.detail,
            )
            for fault in listed
        ],
        numeric=("from", "to"),
    )
    yield "</details>"


# How to repeat it


def _repeat(run: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>How to repeat this</h2>"
    if command := run.get("command"):
        yield f"<pre>{escape(command)}</pre>"
    yield (
        "<p>The seed decides what is sent, what is broken, in which order and after which pauses. The timing of "
        "processes and of the network is that of the machine, so a run with the same seed is similar, not the same."
        "</p>"
        "<p>The histories of all clients are kept beside this page. To check them again, without a cluster:</p>"
    )
    directory = run.get("directory") or "DIRECTORY"
    yield f"<pre>tidelog torture check {escape(str(directory))}</pre>"


def _table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numeric: Sequence[str] = (),
    code: Sequence[str] = (),
    marks: bool = False,
) -> str:
    """A table of escaped cells; with `marks` the first column, a kind of fault, gets its colour in the plot."""

    def cell(column: str, text: str) -> str:
        shown = f"<code>{escape(text)}</code>" if column in code else escape(text)
        if marks and column == columns[0]:
            shown = f'<i class="key f-{family_of(text)}"></i>{shown}'
        return f'<td class="n">{shown}</td>' if column in numeric else f"<td>{shown}</td>"

    head = "".join(
        f'<th class="n">{escape(name)}</th>' if name in numeric else f"<th>{escape(name)}</th>" for name in columns
    )
    body = "".join(
        "<tr>" + "".join(cell(name, text) for name, text in zip(columns, row, strict=True)) + "</tr>\n" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
