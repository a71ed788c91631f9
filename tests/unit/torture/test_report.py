"""The report as a browser reads it: well-formed, self-contained, and immune to what a run may contain."""

from __future__ import annotations

import dataclasses
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tidelog.torture.kinds import OF_HISTORIES, OF_THE_RUN, meaning_of
from tidelog.torture.report import FAULTS_LISTED_MAX, headline, render, write_report
from tidelog.torture.report_plot import COLUMNS_MAX, clock_text, family_of, timeline
from tidelog.torture.verdict import (
    ANOMALIES_SHOWN_MAX,
    Availability,
    Fault,
    Second,
    ShownAnomaly,
    ShownOperation,
    Verdict,
    WorkloadResult,
    judge,
)

HOSTILE = "</td><script>alert(1)</script>&amp;\"'<img src=x onerror=alert(1)>"
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """What is on a page; fails when an element is closed that is not open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def shown(self) -> str:
        return " ".join(" ".join(self.text).split())


RUN: dict[str, Any] = {
    "seed": 41,
    "cluster": "tidelog-sqlite",
    "version": "Tidelog 0.1.0",
    "tidelog": "0.1.0",
    "workloads": ["queue", "probe"],
    "faults": ["kill", "cut-halves"],
    "left_out": [{"what": "full-disk", "why": "it takes root"}],
    "command": "tidelog torture --seed 41",
    "directory": "torture-1",
    "machine": {"system": "Linux 6", "cores": "2 cores"},
    "started": "2026-01-31T12:00:00Z",
    "ended": "2026-01-31T12:06:00Z",
    "ended_by": "ended after 300 s, as asked",
    "replication_factor": 3,
    "min_isr": 2,
    "settings": {"bootstrap": "", "brokers": 3, "rate": 2500.0, "pause_s": 0.5},
    "restart_notes": ["queue-send-1 was started again: it was killed"],
    "fault_seconds": 300.0,
    "total_seconds": 330.0,
    "start_ns": 0,
}
FAULTS = (
    Fault("kill", "broker 2", "", 10.0, 14.5),
    Fault("cut-halves", "1 | 2, 3", "both ways", 12.0, 20.0),
    Fault("pause", "broker 3", "", 290.0, None),
)


def second(at_s: int, written: int = 3, p50_ms: float | None = 3.0, max_ms: float | None = 9.0) -> Second:
    return Second(at_s, 3, written, written * 20, 0, p50_ms, max_ms)


SERIES = (
    *(second(at) for at in range(99)),
    second(99, 3, 3.0, 45.0),
    *(second(at, 0, None, None) for at in range(100, 104)),
    *(second(at) for at in range(104, 300)),
)
AVAILABILITY = Availability(300, 290, 4, 0.9867, 4.2, 3.0, 11.5, 1850.0, SERIES)
OPERATION = ShownOperation("queue-send-1", "send", "ok", 1.5, 1.75, '["send", "queue-0", [7], [3]]', "")
LOST = ShownAnomaly("lost-write", "queue", "queue-0", "value 7 was acknowledged at offset 3 and is gone", (OPERATION,))


def verdict(found: dict[str, int] | None = None, anomalies: tuple[ShownAnomaly, ...] = (), **run: Any) -> Verdict:
    workloads = [
        WorkloadResult("queue", 1_234_567, {"polled": 99}, found or {}, 3),
        WorkloadResult("probe", 12_000, {}, {}, 0),
    ]
    return judge(RUN | run, found or {}, anomalies, workloads, FAULTS, AVAILABILITY)


def test_a_clean_run() -> None:
    page = Page(render(verdict()))
    assert "No anomaly in 1,246,567 acknowledged sends and 3 faults." in page.shown
    for part in (
        "Tidelog 0.1.0", "41", "290 of 300 seconds", "4.2 s", "1.85 s", "98.67%", "full-disk", "it takes root",
        "cut-halves", "1 | 2, 3", "tidelog torture --seed 41", "tidelog torture check torture-1", "ended after 300 s",
        "3 replicas of each partition, min.insync.replicas=2", "2,500 records a second", "0.5 s on average",
        "queue-send-1 was started again: it was killed",
    ):  # fmt: skip
        assert part in page.shown.replace("Ended", "ended"), part
    assert [each for each in page.named("div") if each.get("class") == "verdict clean"]
    assert "<h2>Anomalies" not in render(verdict())


def test_anomalies_come_with_their_meaning_and_the_operations_that_show_them() -> None:
    page = Page(render(verdict({"lost-write": 3}, (LOST,))))
    assert "3 anomalies in 1,246,567" in page.shown
    assert meaning_of("lost-write") in page.shown
    assert '["send", "queue-0", [7], [3]]' in page.shown
    assert "queue-send-1" in page.shown
    assert "2 more of this kind are not shown" in page.shown


def test_a_run_that_proved_nothing_is_not_called_clean() -> None:
    nothing = judge(RUN, {}, (), [WorkloadResult("queue", 0)], FAULTS, None)
    assert "Inconclusive: queue: nothing was acknowledged" in Page(render(nothing)).shown
    assert headline(judge(RUN, {}, (), [], (), None)) == "Inconclusive: no workload ran."


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    html = render(verdict({"lost-write": 1}, (LOST,)))
    page = Page(html)
    assert {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "embed", "base"} == set()
    for _, attributes in page.tags:
        assert not {"src", "href", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    outside = html.replace("http://www.w3.org/2000/svg", "")
    assert "http" not in outside
    assert "url(" not in outside
    assert "@import" not in outside
    assert "prefers-color-scheme: dark" in html
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.named("meta")


def hostile(value: Any) -> Any:
    """The same with hostile texts in place of all texts."""
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, dict):
        return {key: hostile(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [hostile(each) for each in value]
    return value


def test_hostile_contents_never_become_markup() -> None:
    plain = verdict({"lost-write": 1}, (LOST,))
    run = hostile(RUN) | {"notes": [HOSTILE], "restart_notes": [HOSTILE], "settings": {"brokers": HOSTILE}}
    anomaly = ShownAnomaly(
        HOSTILE, HOSTILE, HOSTILE, HOSTILE, (ShownOperation(HOSTILE, HOSTILE, HOSTILE, 0, 1, HOSTILE, HOSTILE),)
    )
    fault = Fault(HOSTILE, HOSTILE, HOSTILE, 1, 2)
    bad = dataclasses.replace(
        plain,
        run=run,
        kinds={HOSTILE: 1},
        anomalies=(anomaly,),
        workloads=(WorkloadResult(HOSTILE, 1, {HOSTILE: 1}),),
        faults=(fault, *FAULTS),
        reasons=(HOSTILE,),
    )
    page = Page(render(bad))
    assert page.named("script") == []
    assert page.named("img") == []
    assert page.shown.count("<script>alert(1)</script>") >= 15
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "src"]


def test_thousands_of_anomalies_and_faults_still_make_a_page() -> None:
    many = tuple(dataclasses.replace(LOST, key=f"queue-{number}") for number in range(5000))
    faults = tuple(Fault("kill", f"broker {number}", "", number / 10, number / 10 + 1) for number in range(5000))
    full = verdict({"lost-write": 5000}, many)
    assert len(full.anomalies) == ANOMALIES_SHOWN_MAX
    html = render(dataclasses.replace(full, faults=faults))
    assert f"The first {FAULTS_LISTED_MAX:,}; all are in faults.jsonl" in Page(html).shown
    assert "4,980 more of this kind" in html
    assert len(html) < 3_000_000


def test_the_report_replaces_the_last_one_whole(tmp_path: Path) -> None:
    assert write_report(verdict(), tmp_path).read_text() == render(verdict())
    assert write_report(verdict({"lost-write": 1}, (LOST,)), tmp_path).read_text().count("lost-write")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


# The plot


def test_each_fault_is_a_band_in_the_lane_of_its_family() -> None:
    page = Page(timeline(SERIES, FAULTS, 300.0))
    bands = [each for each in page.named("rect") if (each["class"] or "").startswith("fault")]
    assert [band["class"] for band in bands] == ["fault f-killed", "fault f-paused", "fault f-network"]
    start, width = (float(bands[0][name] or 0) for name in ("x", "width"))
    scale = (1000 - 104 - 8) / 300
    assert start == pytest.approx(104 + 10 * scale, abs=0.1)
    assert width == pytest.approx(4.5 * scale, abs=0.1)
    assert float(bands[1]["x"] or 0) + float(bands[1]["width"] or 0) == pytest.approx(992, abs=0.2)
    assert "kill broker 2: from 10.0 s to 14.5 s" in page.shown
    assert "pause broker 3: from 290.0 s to the end" in page.shown


def test_seconds_without_writes_are_seen() -> None:
    page = Page(timeline(SERIES, (), 300.0))
    assert [each["class"] for each in page.named("rect")] == ["w-all", "w-none", "w-all"]
    assert "100 s to 104 s: 4 s in which no partition took a write" in page.shown
    assert len(page.named("polyline")) == 4, "neither line is drawn across the gap"


def test_a_long_run_keeps_its_gaps_and_stays_small() -> None:
    seconds = 12 * 3600
    lost = {20_000: 1, 30_000: 0}
    svg = timeline([second(at, lost.get(at, 3)) for at in range(seconds)], FAULTS, seconds)
    assert [each["class"] for each in Page(svg).named("rect") if (each["class"] or "")[:2] == "w-"] == [
        "w-all",
        "w-some",
        "w-all",
        "w-none",
        "w-all",
    ]
    assert ": 1 s in which some partition took no write" in svg
    assert ": 1 s in which no partition took a write" in svg
    assert len(svg) < 60 * COLUMNS_MAX


@pytest.mark.parametrize(
    ("series", "faults"),
    [
        ((), ()),
        ((), FAULTS),
        ((second(0, 0, None, None),), ()),
        ((second(0, 1, 0.0, 0.0),), ()),
        ((second(0, 1, 0.4, 0.4), second(2, 1, 1e7, 1e7)), FAULTS),
    ],
)
def test_odd_runs_are_plotted_too(series: tuple[Second, ...], faults: tuple[Fault, ...]) -> None:
    svg = timeline(series, faults, 0.0)
    Page(svg)
    assert "nan" not in svg
    assert "inf" not in svg


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("kill", "killed"), ("kill-controller", "killed"), ("kill-client", "clients"), ("pause-store", "paused"),
        ("cut-flapping", "network"), ("slow-link", "network"), ("slow-disk", "disk"), ("clock-jump", "clock"),
        ("rolling-restart", "restarted"), ("stop-start", "restarted"), ("elect", "moved"), ("novel", "other"),
    ],
)  # fmt: skip
def test_every_kind_of_fault_has_a_lane(kind: str, family: str) -> None:
    assert family_of(kind) == family


def test_times() -> None:
    assert [clock_text(seconds) for seconds in (0, 75, 3675)] == ["0:00", "1:15", "1:01:15"]


def test_every_kind_that_the_checker_knows_has_a_meaning() -> None:
    from tidelog.torture.anomalies import KINDS

    assert set(KINDS) == set(OF_HISTORIES) | {"stuck-consumer"}
    assert set(OF_HISTORIES) & set(OF_THE_RUN) == set()
    assert json.dumps(OF_HISTORIES)
