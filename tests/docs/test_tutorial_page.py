"""The tutorial runs as written, from an empty directory to a second version that was promoted and taken back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tidelog.testing import Broker

# Beside the other tests that start Spark, one after another.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def test_the_tutorial(examples: Callable[[str], list[Any]], runner: Any, broker: Broker) -> None:
    runner.bootstrap = broker.bootstrap
    runner.deadline_s = 600  # for each command; a busy machine takes minutes to start a JVM
    try:
        for example in examples("docs/tutorial-pipeline.md"):
            runner.run(example)
    finally:
        end_what_still_runs(runner)


def end_what_still_runs(runner: Any) -> None:
    """A page that failed half-way leaves its pipelines running."""
    command = ["tidelog", "pipeline", "status", "--json"]
    done = subprocess.run(command, cwd=runner.directory, env=runner.environment, capture_output=True, text=True)
    for run in json.loads(done.stdout or "[]"):
        if run["state"] in ("running", "stopping"):
            with suppress(ProcessLookupError):
                os.kill(run["pid"], signal.SIGKILL)
