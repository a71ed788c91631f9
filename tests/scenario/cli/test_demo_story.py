"""`tidelog demo` tells a true story on few events, can be kept and gone on with, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

EVENTS = 20_000
DEADLINE_S = 1500  # the demo itself gives up earlier, when nothing moves any more
WAIT_S = 300
LOOK_S = 0.2  # looking at all processes costs something

# One of them works at a time, beside no other test that starts Spark.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.tidelog_only, pytest.mark.timeout(DEADLINE_S + 60)]


def processes_of(directory: Path) -> list[psutil.Process]:
    """All that work in or for a directory."""
    found = []
    for process in psutil.process_iter(["pid"]):
        try:
            if (
                process.pid != os.getpid()
                and (str(directory) in " ".join(process.cmdline()) or process.cwd().startswith(str(directory)))
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where a demo works; whatever a failed test has left running there is ended."""
    yield tmp_path
    for process in processes_of(tmp_path):
        process.kill()


@pytest.fixture
def environment(place: Path) -> dict[str, str]:
    (place / "tmp").mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}
    return inherited | {"TMPDIR": str(place / "tmp"), "COLUMNS": "100"}


def start(environment: dict[str, str], place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidelog", "demo", "--events", str(EVENTS), *arguments],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(is_there: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_there():
        assert time.monotonic() < deadline_s
        time.sleep(LOOK_S)


def wait_for_none(directory: Path) -> None:
    wait_for(lambda: not processes_of(directory))


def tell(environment: dict[str, str], place: Path, *arguments: str) -> dict[str, Any]:
    """The story told to its end, as a document that was checked."""
    with start(environment, place, "--json", "--seed", "3", *arguments) as process:
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    check_document(document)

    from matplotlib.image import imread

    assert imread(place / "tidelog-demo.png").shape[1] > 900
    return document


def test_the_whole_story(environment: dict[str, str], place: Path) -> None:
    tell(environment, place)
    wait_for_none(place)
    assert not list((place / "tmp").glob("tidelog-demo-*"))


@pytest.mark.soak  # the lines start several JVMs more
def test_a_story_that_is_kept_and_gone_on_with(environment: dict[str, str], place: Path) -> None:
    document = tell(environment, place, "--keep", "--dir", "demo")
    # What it says can be typed works.
    lines = document["go_on"]
    for line in lines[2:]:
        run_line(" && ".join([*lines[:2], line]), environment)
    stop_pipeline, kill_broker, remove = document["stop"]
    run_line(" && ".join([*lines[:2], stop_pipeline]), environment)
    run_line(kill_broker, environment)
    wait_for_none(place)
    run_line(remove, environment)
    assert not (place / "demo").exists()
    assert not list((place / "tmp").glob("tidelog-demo-*"))


def check_document(document: dict[str, Any]) -> None:
    assert (document["events"], document["seed"]) == (EVENTS, 3)
    assert document["broken"] == 4
    assert 0 < document["killed_at"] < 0.6
    first, second = document["version_1"], document["version_2"]
    assert first["orders"] + first["clicks"] < second["orders"] + second["clicks"] < EVENTS
    assert document["diff"]["changed"] > 0
    assert document["dead_letters"] <= document["broken"]
    assert len(document["checks"]) == 5
    assert len(document["chapters"]) == 10
    assert document["seconds"] >= sum(document["chapters"].values()) * 0.9


def run_line(line: str, environment: dict[str, str]) -> None:
    path = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        env=environment | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def test_an_early_end_leaves_nothing_behind(environment: dict[str, str], place: Path) -> None:
    with start(environment, place) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "tidelog pipeline run" in line:
                break
        wait_for(lambda: any("java" in each.name() for each in processes_of(place)))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (130, "")
    wait_for_none(place)
    assert not list((place / "tmp").glob("tidelog-demo-*"))


def test_a_chart_that_can_not_be_written_is_found_out_first(environment: dict[str, str], place: Path) -> None:
    with start(environment, place, "--chart", "nowhere/chart.png") as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (1, "")
    assert "the chart can't be written to nowhere/chart.png" in err


def test_what_is_missing_is_told_first(environment: dict[str, str], place: Path) -> None:
    without_java = environment | {"PATH": str(place), "JAVA_HOME": ""}
    with start(without_java, place) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (1, "")
    assert "openjdk-17-jre-headless" in err
    assert err.count("\n") == 1


def test_a_directory_with_something_in_it_is_left_alone(environment: dict[str, str], place: Path) -> None:
    (place / "full").mkdir()
    (place / "full" / "mine.txt").write_text("mine")
    with start(environment, place, "--dir", "full") as process:
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "is not empty" in err
    assert [path.name for path in (place / "full").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "arguments", [("--quick", "--keep"), ("--quick", "--dir", "x"), ("--seconds", "5"), ("--bootstrap", "127.0.0.1:1")]
)
def test_options_that_do_not_go_together(environment: dict[str, str], place: Path, arguments: tuple[str, ...]) -> None:
    with start(environment, place, *arguments) as process:
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2, shlex.join(arguments)
    assert err.count("\n") == 1
