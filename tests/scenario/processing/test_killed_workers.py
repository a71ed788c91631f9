"""Workers that are killed with -9 at each step: what the next one does shows what is promised, and what is not."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tidelog import Deduplicator

pytestmark = pytest.mark.xdist_group("processing")

# Works on a key with an effect outside of the database, a line in a file; dies where it is told to.
WITH_A_LEASE = """
import os, signal, sys
from tidelog import Deduplicator

url, effects, dies_at = sys.argv[1:]

def reach(place):
    if place == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)

dedup = Deduplicator(url, name="mail", lease_s=0.3)
with dedup.once("orders-0-7") as first:
    reach("between claim and effect")
    if first:
        with open(effects, "a") as file:
            file.write("sent ")
    reach("between effect and mark")
reach("after the mark")
dedup.close()
"""

# Works on keys with an effect in the database itself, in one transaction with the mark.
IN_ONE_TRANSACTION = """
import os, signal, sqlite3, sys
import psycopg
from tidelog import Deduplicator

url, keys, dies_at = sys.argv[1:]

def reach(place):
    if place == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)

if url.startswith("sqlite"):
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)
    begin = "BEGIN IMMEDIATE"
else:
    connection = psycopg.connect(url)
    begin = "SELECT 1"
dedup = Deduplicator(url, name="ledger")
for key in keys.split(","):
    connection.execute(begin)
    with dedup.once(key, connection=connection) as first:
        reach("between claim and effect")
        if first:
            connection.execute(f"INSERT INTO effects VALUES ('{key}')")
        reach("between effect and mark")
    reach("before the commit")
    connection.commit()
    reach("after the mark")
connection.close()
dedup.close()
"""


def run(script: str, *arguments: str) -> int:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.parametrize(
    ("dies_at", "effects"),
    [
        # The claim ends with its lease, and the next worker has the effect: once.
        ("between claim and effect", "sent "),
        # The effect happened and nobody knows: the one window in which it happens again.
        ("between effect and mark", "sent sent "),
        ("after the mark", "sent "),
    ],
)
def test_an_effect_elsewhere_happens_at_least_once(database: Any, tmp_path: Path, dies_at: str, effects: str) -> None:
    file = tmp_path / "effects.txt"
    assert run(WITH_A_LEASE, database.url, str(file), dies_at) == -signal.SIGKILL
    with Deduplicator(database.url, name="mail", lease_s=0.3) as dedup:
        for _ in range(2):
            with dedup.once("orders-0-7") as first, file.open("a") as successor:
                successor.write("sent " if first else "")
    assert file.read_text() == effects


@pytest.mark.parametrize(
    "dies_at", ["between claim and effect", "between effect and mark", "before the commit", "after the mark"]
)
def test_an_effect_in_the_same_transaction_happens_once(sql_database: Any, dies_at: str) -> None:
    sql_database.execute("CREATE TABLE effects (id text)")
    assert run(IN_ONE_TRANSACTION, sql_database.url, "orders-0-7", dies_at) == -signal.SIGKILL
    assert run(IN_ONE_TRANSACTION, sql_database.url, "orders-0-7,orders-0-7", "never") == 0
    assert sql_database.execute("SELECT count(*) FROM effects") == [(1,)]


def test_workers_that_are_killed_at_any_moment_double_and_lose_nothing(sql_database: Any) -> None:
    """Two workers go over the same keys; each that is killed has a successor, which begins at the start."""
    sql_database.execute("CREATE TABLE effects (id text)")
    keys = [str(key) for key in range(400)]
    command = [sys.executable, "-c", IN_ONE_TRANSACTION, sql_database.url, ",".join(keys), "never"]
    chance = random.Random(7)
    kills = 0

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stderr=subprocess.PIPE)

    workers = [start(), start()]
    while kills < 4:
        victim = chance.randrange(2)
        try:
            workers[victim].wait(0.2 + chance.random() * 0.6)
        except subprocess.TimeoutExpired:
            workers[victim].kill()
            workers[victim].wait(20)
            kills += 1
        workers[victim].communicate()
        workers[victim] = start()
    for worker in workers:
        _, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors.decode()
    found = sql_database.execute("SELECT id, count(*) FROM effects GROUP BY id")
    assert sorted(found) == sorted((key, 1) for key in keys)


def test_a_killed_writer_does_not_block_sqlite(sqlite_database: Any) -> None:
    """The lock of a process that died inside its transaction goes with it."""
    sqlite_database.execute("CREATE TABLE effects (id text)")
    run(IN_ONE_TRANSACTION, sqlite_database.url, "k", "before the commit")
    begun_s = time.monotonic()
    connection = sqlite3.connect(sqlite_database.path, timeout=20)
    connection.execute("BEGIN IMMEDIATE")
    connection.close()
    assert time.monotonic() - begun_s < 5
