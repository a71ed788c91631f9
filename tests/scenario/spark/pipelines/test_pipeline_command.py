"""The command, as people run it: a driver that is killed with -9, one that is stopped, what the others show."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline_place import DEADLINE_S, Place
from tidelog import Admin
from tidelog.bench.brokers import BrokerProcess

PIPELINE = """
from pyspark.sql import functions as sf

from rates import RATE
from tidelog.pipeline import Json, Pipeline, TopicInput, TopicOutput


def positive(row):
    if row["price"] < 0:
        raise ValueError("a negative price")
    return {"category": row["category"], "price": row["price"] * RATE}


def totals(orders):
    sums = orders.groupBy("category").agg(sf.sum("price").alias("total"), sf.count("*").alias("orders"))
    return sums


pipeline = Pipeline(
    name="totals",
    version=1,
    inputs={"orders": TopicInput("ORDERS", format=Json("category string, price double"), map=positive)},
    transform=totals,
    outputs=[TopicOutput("TOTALS", key="category", mode="upsert")],
    output_mode="update",
    dead_letters="REFUSED",
    trigger="200 milliseconds",
    group="GROUP",
)
"""


class Command:
    """`tidelog pipeline ...` with the state of one test."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self._directory = directory
        self._bootstrap = bootstrap
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, *arguments: str) -> Any:
        done = subprocess.run(self._line(*arguments, "--json"), capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def fails(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(self._line(*arguments), capture_output=True, text=True, timeout=DEADLINE_S)
        return done.returncode, done.stderr

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        options = ["--bootstrap", self._bootstrap, "--master", "local[2]", "--conf", "spark.driver.memory=1g", "--json"]
        process = subprocess.Popen(
            self._line(*arguments, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process

    def _line(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tidelog", "pipeline", *arguments, "--state", str(self._directory / "state")]


@pytest.fixture
def place(cluster: BrokerProcess, tmp_path: Path) -> Place:
    """Without a session: the command starts its own."""
    return Place(cluster.bootstrap, tmp_path / "state", None)


@pytest.fixture
def command(place: Place, tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path, place.bootstrap)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _lines_until(process: subprocess.Popen[str], holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first progress of a run for which it holds."""
    assert process.stdout is not None
    for line in process.stdout:
        document: dict[str, Any] = json.loads(line)
        if holds(document):
            return document
    assert process.stderr is not None
    pytest.fail(f"the run has ended: {process.stderr.read()}")


@pytest.mark.soak  # the demo's story kills a driver in every test run
def test_killed_and_run_again(place: Place, command: Command, fresh_name: Callable[[str], str], tmp_path: Path) -> None:
    orders, totals, refused, group = (fresh_name(word) for word in ("orders", "totals", "refused", "group"))
    names = {"ORDERS": orders, "TOTALS": totals, "REFUSED": refused, "GROUP": group}
    text = PIPELINE
    for word, name in names.items():
        text = text.replace(f'"{word}"', f'"{name}"')
    file = tmp_path / "shop.py"
    file.write_text(text)
    (tmp_path / "rates.py").write_text("RATE = 2.0\n")
    place.create(orders)

    def send(count: int) -> None:
        prices = [-1.0 if number % 100 == 0 else 1.0 for number in range(count)]
        values: list[Any] = [{"category": "abc"[number % 3], "price": price} for number, price in enumerate(prices)]
        place.send(orders, [*values, b"broken"])

    send(900)
    run = command.start("run", str(file))
    first = _lines_until(run, lambda document: document["rows"] >= 901)
    assert first["spark_url"].startswith("http")
    send(900)
    _lines_until(run, lambda document: document["batch_id"] > first["batch_id"])
    [shown] = command("status", "totals")
    assert (shown["state"], shown["version"], shown["role"]) == ("running", 1, "live")
    assert command.fails("run", str(file))[0] == 1  # it runs already
    run.send_signal(signal.SIGKILL)
    run.wait(DEADLINE_S)
    [shown] = command("list")
    assert (shown["name"], shown["state"]) == ("totals", "killed")

    send(900)
    again = command.start("run", str(file))
    last = _lines_until(again, lambda document: document["lag"] == 0 and document["rows"] > 0)
    assert sum(last["processed"][orders].values()) == 2703
    assert command("stop", str(file)) == [{"name": "totals", "version": 1, "outcome": "stopped"}]
    assert again.wait(DEADLINE_S) == 0

    found = {row["category"]: (row["orders"], row["total"]) for row in place.table(totals).values()}
    assert found == {"a": (891, 1782.0), "b": (891, 1782.0), "c": (891, 1782.0)}
    assert len(place.read(refused)) == 3 * (9 + 1)
    # Lag tools see it. Spark commits a batch when it plans the next one, so the last may be missing, but no other.
    with Admin(bootstrap_servers=place.bootstrap) as admin:
        committed = admin.list_consumer_group_offsets(group)[group]
    assert 2 * 901 <= sum(each.offset for each in committed.values()) <= 3 * 901


def test_what_the_command_refuses(command: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import tidelog.pipeline\npipeline = tidelog.pipeline.Pipeline(name='x')\n")
    code, said = command.fails("run", str(tmp_path / "broken.py"))
    assert (code, said.count("\n")) == (2, 1)
    assert f"{tmp_path / 'broken.py'}:2: TypeError" in said
    assert command.fails("status")[0] == 1
    code, said = command.fails("run", str(tmp_path / "none.py"))
    assert code == 2
    assert "there is no file" in said
