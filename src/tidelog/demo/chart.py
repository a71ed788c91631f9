"""The demo's chart, a PNG file: revenue per minute for each category, as both versions of the pipeline see it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tidelog.demo.totals import Slot, Sums

COLUMNS = 3
FIRST_COLOUR, SECOND_COLOUR = "#b9b2a5", "#0b6e99"


def write_chart(path: Path, first: Mapping[Slot, Sums], second: Mapping[Slot, Sums]) -> None:
    """A small chart a category, all on one scale."""
    import matplotlib.dates
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    categories = sorted({slot.category for slot in first.keys() | second.keys()})
    figure = Figure(figsize=(12, 2.6 * -(-len(categories) // COLUMNS) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)  # no display is asked for
    plots = figure.subplots(-(-len(categories) // COLUMNS), COLUMNS, sharex=True, sharey=True, squeeze=False)
    for plot, category in zip(plots.flat, categories, strict=False):
        for sums, label, colour in (
            (first, "version 1, until it was replaced", FIRST_COLOUR),
            (second, "version 2", SECOND_COLOUR),
        ):
            minutes, euros = _line(sums, category)
            plot.plot(minutes, euros, color=colour, label=label, linewidth=1.6)
        plot.set_title(category, fontsize=10, loc="left")
        hours = matplotlib.dates.DateFormatter("%H:%M")  # type: ignore[no-untyped-call]  # matplotlib left it untyped
        plot.xaxis.set_major_formatter(hours)
        plot.tick_params(labelsize=8)
        for side in ("top", "right"):
            plot.spines[side].set_visible(False)
    for plot in list(plots.flat)[len(categories) :]:
        plot.set_visible(False)
    handles, labels = plots.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    figure.suptitle("Revenue per minute, in euros (UTC)", x=0.01, ha="left", fontsize=12)
    figure.savefig(path, dpi=110)


def _line(sums: Mapping[Slot, Sums], category: str) -> tuple[list[datetime], list[float]]:
    slots = sorted(slot for slot in sums if slot.category == category)
    return (
        [datetime.fromisoformat(slot.minute) for slot in slots],
        [sums[slot].revenue_cents / 100 for slot in slots],
    )
