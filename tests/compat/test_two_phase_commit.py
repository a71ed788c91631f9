"""What a Java producer left open is kept and committed by Kafka's own requests of two-phase commit (KIP-939)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tidelog.bench.brokers import kafka_jars
from tidelog.testing import Broker

pytestmark = pytest.mark.compat

DRIVER = Path(__file__).parent / "java" / "TwoPhaseCommit.java"
SETTINGS = {"unstable.api.versions.enable": "true", "transaction.two.phase.commit.enable": "true"}


def test_what_a_java_producer_prepared_is_committed_after_it_died() -> None:
    with Broker(settings=SETTINGS) as broker:
        broker.create_topic("t")
        command = ["java", "-Xmx256m", "-cp", f"{kafka_jars()}/*", str(DRIVER), "127.0.0.1", str(broker.port), "t"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "before []",
        "kept NONE true 1",
        "ended NONE 1",
        "after [prepared, next]",
    ]
