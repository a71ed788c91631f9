"""The README's commands and programs run, print what it says they print, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidelog.bench.brokers import free_port

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if path.is_file()
)

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@contextmanager
def served(runner: Any, *options: str) -> Iterator[str]:  # the class lives in the conftest, which can't be imported
    """`tidelog serve` as the README starts it, but on a free port; gives the line it prints."""
    port = free_port() if options else 0  # the ports of a cluster count up from the first
    with subprocess.Popen(
        ["tidelog", "serve", *options, "--listen", f"127.0.0.1:{port}", "--log-level", "error"],
        cwd=runner.directory,
        env=runner.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready = re.search(r"ready on (\S+)", line)
            assert ready is not None, f"the broker printed {line!r}"
            runner.bootstrap = ready[1]
            yield line
        finally:
            process.terminate()
    assert process.returncode == 0


def test_the_tour_runs_as_written(examples: Callable[[str], list[Any]], runner: Any) -> None:
    start, *tour = examples("README.md")
    # The first is what got this test an installed tidelog, the second runs for as long as the tour does.
    assert start.code.splitlines() == ["pip install .", "tidelog serve"]
    [cluster] = [example for example in tour if example.code == "tidelog serve --brokers 3\n"]
    before, after = tour[: tour.index(cluster)], tour[tour.index(cluster) + 1 :]
    with served(runner) as line:
        runner.check_output(start, line)
        for example in before:
            runner.run(example)
        # Newcomers run a program twice; the second time the group has already read what was there.
        again = next(example for example in tour if example.language == "python")
        again.expected = "stored in partition 2\n['oi']\n"
        runner.run(again)
    with served(runner, "--brokers", "3") as line:
        runner.check_output(cluster, line)
        for example in after:
            runner.run(example)
        listed = subprocess.run(["tidelog", "topics", "list"], env=runner.environment, capture_output=True, check=True)
        assert b"greetings" in listed.stdout, "the data is the same"
    assert {example.language for example in tour} == {"sh", "python"}


def anchors(text: str) -> set[str]:
    """What GitHub makes of headings."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in _HEADING.findall(re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
    }


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), f"{page} links to {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page} links to {link}"


def test_the_index_names_every_page() -> None:
    named = set(_LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - named == {"index.md"}
