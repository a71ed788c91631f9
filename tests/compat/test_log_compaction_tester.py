"""Kafka's own LogCompactionTester: it produces, lets the broker compact, reads everything as a group, and compares."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tidelog.testing import Broker

pytestmark = pytest.mark.compat

MESSAGES = 300_000
DUPLICATES = 30
DELETES_PERCENT = 10
# The tester makes its topics with `cleanup.policy=compact` and nothing else; these let a short run be compacted.
SETTINGS = {
    "log.segment.bytes": 1_048_576,
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "offsets.topic.num.partitions": 1,
}


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_last_value_of_every_key_is_left(java_jars: Path, compression: str) -> None:
    with Broker(settings=SETTINGS) as broker:
        tester = ["java", "-Xmx512m", "-cp", f"{java_jars}/log-compaction-tester/*", "kafka.tools.LogCompactionTester"]
        options = {
            "bootstrap-server": broker.bootstrap,
            "messages": MESSAGES,
            "duplicates": DUPLICATES,
            "percent-deletes": DELETES_PERCENT,
            "compression-type": compression,
            "topics": 2,
            "sleep": 5,  # seconds, whatever the tool's help says
        }
        arguments = [argument for name, value in options.items() for argument in (f"--{name}", str(value))]
        done = subprocess.run([*tester, *arguments], capture_output=True, text=True, timeout=240)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "Data verification is completed" in output
    assert re.search(r"Validated [1-9]\d* values, 0 mismatches", output), output
    found = re.search(r"(\d+) rows of data produced, (\d+) rows of data consumed", output)
    assert found is not None, output
    produced, consumed = int(found[1]), int(found[2])
    assert produced == 2 * MESSAGES
    # Were nothing removed, the tester would be content as well.
    assert consumed < produced / 2, output
