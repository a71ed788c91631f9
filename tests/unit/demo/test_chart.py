"""The chart is a PNG image that shows both versions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidelog.demo.chart import FIRST_COLOUR, SECOND_COLOUR, write_chart
from tidelog.demo.shop import open_shop
from tidelog.demo.totals import Slot, Sums, Totals


def colours_of(path: Path) -> set[str]:
    from matplotlib.image import imread

    pixels = imread(path)  # raises unless the file is a whole PNG image
    assert pixels.shape[0] > 300
    assert pixels.shape[1] > 900
    packed = (pixels[:, :, :3] * 255).round().astype(int)
    return {
        f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in {tuple(pixel) for pixel in packed.reshape(-1, 3)}
    }


def test_both_versions_are_drawn(tmp_path: Path) -> None:
    first, second = Totals(), Totals()
    for events in open_shop(5000, 3, datetime(2026, 3, 1, 9, tzinfo=UTC)):
        first.add(events.topic, events.rows, count_cancelled=True)
        second.add(events.topic, events.rows, count_cancelled=False)
    write_chart(tmp_path / "revenue.png", first.slots, second.slots)
    assert (tmp_path / "revenue.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert {FIRST_COLOUR, SECOND_COLOUR} <= colours_of(tmp_path / "revenue.png")


@pytest.mark.parametrize("categories", [1, 3, 4])
def test_any_number_of_categories(tmp_path: Path, categories: int) -> None:
    sums = {Slot("2026-03-01T09:00:00Z", f"c{number}"): Sums(number, 1, 1) for number in range(categories)}
    write_chart(tmp_path / "revenue.png", sums, sums)
    assert SECOND_COLOUR in colours_of(tmp_path / "revenue.png")
