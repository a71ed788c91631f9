"""The plot of the report: writes, latency and faults over time, as one SVG that scales.

What always holds: it needs nothing from outside, takes its colours from the page (classes only), and stays readable
for runs of minutes and of hours, since seconds are put together into at most `COLUMNS_MAX` columns. Within a column
the worst counts: a second without a write is never hidden by those beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from tidelog.torture.verdict import Fault, Second

COLUMNS_MAX: Final = 600

_WIDTH: Final = 1000
_LEFT: Final = 104
_RIGHT: Final = 8
_LANE: Final = 18
_STRIP: Final = 22
_LATENCY: Final = 190
_GAP: Final = 12
_TOP: Final = 6
_AXIS: Final = 34
_STRIP_MIN: Final = {"all": 0.5, "some": 1.0, "none": 2.0}
_BAND_MIN: Final = 2.0  # what is shorter would not be seen
_TICKS_MAX: Final = 10
_TICK_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)

# The lanes of the faults from top to bottom, and which kinds belong to each, by the beginning of their names.
FAMILIES: Final = (
    ("killed", ("kill", "power")),
    ("paused", ("pause",)),
    ("restarted", ("stop", "rolling", "restart")),
    ("network", ("cut", "slow-link")),
    ("disk", ("full-disk", "failing-disk", "slow-disk")),
    ("clock", ("clock",)),
    ("moved", ("reassign", "elect")),
    ("clients", ("kill-client",)),
)
OTHER_FAMILY: Final = "other"


def family_of(kind: str) -> str:
    """The lane of a kind of fault: that of the longest beginning that its name has."""
    fitting = [(len(start), name) for name, starts in FAMILIES for start in starts if kind.startswith(start)]
    return max(fitting)[1] if fitting else OTHER_FAMILY


@dataclass(frozen=True)
class _Column:
    """Some seconds side by side that share a place in the plot."""

    start_s: float
    end_s: float
    short_s: int  # seconds in which a partition took no write
    without_s: int  # seconds in which none did
    seconds: int
    p50_ms: float | None
    max_ms: float | None


def timeline(series: Sequence[Second], faults: Sequence[Fault], seconds: float) -> str:
    """The whole plot, or a sentence where there is nothing to plot."""
    seconds = max(seconds, *(second.at_s + 1 for second in series), 1) if series else max(seconds, 1)
    lanes = [name for name in (*(name for name, _ in FAMILIES), OTHER_FAMILY) if name in set(map(_family, faults))]
    if not series and not lanes:
        return "<p>There were no probes and no faults, so there is nothing to plot.</p>"
    scale = (_WIDTH - _LEFT - _RIGHT) / seconds
    parts: list[str] = []
    y = _TOP
    for lane in lanes:
        parts += _lane(lane, [fault for fault in faults if _family(fault) == lane], y, scale, seconds)
        y += _LANE
    if lanes:
        y += _GAP
    columns = list(_columns(series, seconds))
    if columns:
        parts += _strip(columns, y, scale)
        y += _STRIP + _GAP
        parts += _latency(columns, y, scale)
        y += _LATENCY
    parts += _time_axis(seconds, y, scale)
    height = y + _AXIS
    label = "Writes, latency and faults over the time of the run"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}" '
        f'xmlns="http://www.w3.org/2000/svg">\n' + "\n".join(parts) + "\n</svg>"
    )


def _family(fault: Fault) -> str:
    return family_of(fault.kind)


def _columns(series: Sequence[Second], seconds: float) -> Iterator[_Column]:
    width_s = max(1, math.ceil(seconds / COLUMNS_MAX))
    grouped: dict[int, list[Second]] = {}
    for second in series:
        grouped.setdefault(second.at_s // width_s, []).append(second)
    for number, group in sorted(grouped.items()):
        medians = sorted(each.p50_ms for each in group if each.p50_ms is not None)
        yield _Column(
            start_s=number * width_s,
            end_s=min(seconds, (number + 1) * width_s),
            short_s=sum(0 < each.written < each.tried for each in group),
            without_s=sum(not each.written for each in group),
            seconds=len(group),
            p50_ms=medians[len(medians) // 2] if medians else None,
            max_ms=max((each.max_ms for each in group if each.max_ms is not None), default=None),
        )


def _lane(name: str, faults: Iterable[Fault], y: float, scale: float, seconds: float) -> Iterator[str]:
    yield _label(name, y + _LANE * 0.7)
    yield f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y + _LANE - 1}" y2="{y + _LANE - 1}"/>'
    for fault in faults:
        start_s = min(max(fault.start_s, 0), seconds)
        end_s = min(seconds if fault.end_s is None else max(fault.end_s, start_s), seconds)
        x = min(_LEFT + start_s * scale, _WIDTH - _RIGHT - _BAND_MIN)
        width = max(_BAND_MIN, (end_s - start_s) * scale)
        told = escape(f"{fault.kind} {fault.target}: {fault_times(fault)}")
        yield (
            f'<rect class="fault f-{name}" x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{_LANE - 5}">'
            f"<title>{told}</title></rect>"
        )


def fault_times(fault: Fault) -> str:
    """'from 12.3 s to 15.0 s'."""
    end = "the end" if fault.end_s is None else f"{fault.end_s:.1f} s"
    return f"from {fault.start_s:.1f} s to {end}"


def _strip(columns: Sequence[_Column], y: float, scale: float) -> Iterator[str]:
    """Green where all partitions took writes in every second, red where none did for a second, amber between."""
    yield _label("writes", y + _STRIP * 0.68)
    for start_s, end_s, state, lost_s in _runs(columns):
        x, width = _LEFT + start_s * scale, max(_STRIP_MIN[state], (end_s - start_s) * scale)
        what = {
            "all": "all partitions took writes",
            "some": f"{lost_s} s in which some partition took no write",
            "none": f"{lost_s} s in which no partition took a write",
        }[state]
        told = f"{start_s:g} s to {end_s:g} s: {what}"
        yield (
            f'<rect class="w-{state}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_STRIP - 4}">'
            f"<title>{told}</title></rect>"
        )


def _runs(columns: Sequence[_Column]) -> list[tuple[float, float, str, int]]:
    """Neighbouring columns of one state together: start, end, state, and for how many seconds it was so."""
    runs: list[tuple[float, float, str, int]] = []
    for column in columns:
        state = "none" if column.without_s else "some" if column.short_s else "all"
        lost_s = {"none": column.without_s, "some": column.short_s, "all": 0}[state]
        if runs and runs[-1][2] == state and runs[-1][1] == column.start_s:
            runs[-1] = (runs[-1][0], column.end_s, state, runs[-1][3] + lost_s)
        else:
            runs.append((column.start_s, column.end_s, state, lost_s))
    return runs


def _latency(columns: Sequence[_Column], y: float, scale: float) -> Iterator[str]:
    """The median and the slowest acknowledged write of each column, on a logarithmic scale."""
    values = [
        value for column in columns for value in (column.p50_ms, column.max_ms) if value is not None and value > 0
    ]
    low, high = _decades(values)

    def place(value_ms: float) -> float:
        share = (math.log10(max(value_ms, 10.0**low)) - low) / (high - low)
        return y + _LATENCY * (1 - share)

    for decade in range(low, high + 1):
        at = place(10.0**decade)
        yield f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield _label(_latency_text(10.0**decade), at + 4)
    slowest, medians = [column.max_ms for column in columns], [column.p50_ms for column in columns]
    middles = [_LEFT + (column.start_s + column.end_s) / 2 * scale for column in columns]
    for name, of_columns in (("max", slowest), ("p50", medians)):
        points = list(zip(middles, of_columns, strict=True))
        for line in _unbroken(points):
            path = " ".join(f"{x:.1f},{place(value):.1f}" for x, value in line)
            if len(line) == 1:
                yield f'<circle class="l-{name} dot" cx="{line[0][0]:.1f}" cy="{place(line[0][1]):.1f}" r="1.8"/>'
            else:
                yield f'<polyline class="l-{name}" points="{path}"/>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten in milliseconds between which all values lie."""
    if not values:
        return 0, 3
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _unbroken(points: Iterable[tuple[float, float | None]]) -> Iterator[list[tuple[float, float]]]:
    """The points without gaps between them: nothing is drawn across seconds in which nothing was measured."""
    line: list[tuple[float, float]] = []
    for x, value in points:
        if value is not None:
            line.append((x, value))
        elif line:
            yield line
            line = []
    if line:
        yield line


def _latency_text(value_ms: float) -> str:
    return f"{value_ms / 1000:g} s" if value_ms >= 1000 else f"{value_ms:g} ms"


def _time_axis(seconds: float, y: float, scale: float) -> Iterator[str]:
    step_s = next((step for step in _TICK_STEPS_S if seconds / step <= _TICKS_MAX), _TICK_STEPS_S[-1])
    for number in range(int(seconds // step_s) + 1):
        at_s = number * step_s
        x = _LEFT + at_s * scale
        yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{y + 5}"/>'
        anchor = "end" if x > _WIDTH - 40 else "middle"
        yield f'<text x="{x:.1f}" y="{y + 21}" text-anchor="{anchor}">{clock_text(at_s)}</text>'


def clock_text(seconds: float) -> str:
    """75 is '1:15', 3675 is '1:01:15'."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _label(text: str, y: float) -> str:
    return f'<text class="label" x="{_LEFT - 8}" y="{y:.1f}" text-anchor="end">{escape(text)}</text>'
