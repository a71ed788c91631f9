"""Programs that end without closing their clients end all the same."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tidelog import Admin, NewTopic
from tidelog.bench.brokers import BrokerProcess

USES = {
    "Admin": "client.list_topics()",
    "Producer": "client.partitions_for(topic)",
    "Consumer": "client.partitions_for(topic); client.assign([(topic, 0)]); client.poll(0.1)",
}
DEADLINE_S = 60.0
# A thread that stands still would be waited for longer.
SOON_S = 8.0


@pytest.mark.parametrize("kind", ["Admin", "Producer", "Consumer"])
@pytest.mark.parametrize("where", ["a module", "a cycle"])
def test_a_program_ends_with_an_open_client(
    client_cluster: BrokerProcess, fresh_name: Callable[[str], str], kind: str, where: str
) -> None:
    topic = fresh_name("topic")
    with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic)]).raise_for_errors()
        admin.wait_for_topics(topic)
    keep = "holder = []; holder.append((holder, client)); del client, holder" if where == "a cycle" else ""
    code = f"""
import sys, time, tidelog
topic = sys.argv[2]
client = tidelog.{kind}(bootstrap_servers=sys.argv[1])
{USES[kind]}
{keep}
print(time.time())
"""
    command = [sys.executable, "-c", code, client_cluster.bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.time() - float(done.stdout) < SOON_S
