"""Kafka's own administration tools against a cluster of three Tidelog brokers."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_processes import BrokerProcesses
from tidelog import Admin, Producer
from tidelog.bench.brokers import TidelogBroker, kafka_jars
from tidelog.client.admin import NewTopic
from tidelog.client.types import TopicPartition

pytestmark = pytest.mark.compat

TOOLS = "org.apache.kafka.tools"
CONFIG_COMMAND = "kafka.admin.ConfigCommand"
REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"
TIMEOUT_S = 120
DEADLINE_S = 120
THROTTLED = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)


class Tools:
    """Runs tools against a cluster."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.directory = directory

    def command(self, tool: str) -> list[str]:
        return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars()}/*", tool]

    def __call__(self, tool: str, *arguments: str, expected_code: int = 0) -> str:
        command = [*self.command(tool), *arguments, "--bootstrap-server", self.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == expected_code, done.stdout + done.stderr
        return done.stdout

    def reassign(self, action: str, plan: dict[str, object], *arguments: str) -> str:
        path = self.directory / "plan.json"
        path.write_text(json.dumps(plan))
        return self(REASSIGN, f"--{action}", "--reassignment-json-file", str(path), *arguments)

    def described(self, *arguments: str) -> list[dict[str, str]]:
        """The partitions that kafka-topics shows."""
        output = self(f"{TOOLS}.TopicCommand", "--describe", *arguments)
        lines = [line for line in output.splitlines() if "\tPartition: " in line]
        return [dict(re.findall(r"(\w+): ([^\t]*)", line)) for line in lines]


def moves(topic: str, *replicas: list[int]) -> dict[str, object]:
    rows = [{"topic": topic, "partition": index, "replicas": each} for index, each in enumerate(replicas)]
    return {"version": 1, "partitions": rows}


def produce(bootstrap: str, topic: str, count: int, size_bytes: int = 10) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(count):
            producer.send(topic, bytes(size_bytes), partition=0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    processes = BrokerProcesses(tmp_path_factory.mktemp("cluster"))
    processes.start()
    try:
        yield processes
    finally:
        processes.kill()


@pytest.fixture
def tools(cluster: BrokerProcesses, tmp_path: Path) -> Tools:
    return Tools(cluster.bootstrap, tmp_path)


@pytest.fixture(scope="module")
def admin(cluster: BrokerProcesses) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        yield admin


def create(admin: Admin, name: str, *replicas: list[int], configs: dict[str, str | None] | None = None) -> None:
    new = NewTopic(name, assignments=dict(enumerate(replicas)), configs=configs or {})
    admin.create_topics([new]).raise_for_errors()


def throttles(tools: Tools, topic: str) -> set[str]:
    shown = tools(CONFIG_COMMAND, "--entity-type", "topics", "--entity-name", topic, "--describe")
    for node_id in (1, 2, 3):
        shown += tools(CONFIG_COMMAND, "--entity-type", "brokers", "--entity-name", str(node_id), "--describe")
    return {name for name in THROTTLED if f"{name}=" in shown}


def test_a_throttled_reassignment_is_executed_and_verified(admin: Admin, tools: Tools) -> None:
    create(admin, "moved", [1, 2], [2, 1])
    produce(tools.bootstrap, "moved", 20, 500_000)
    chosen = tools.directory / "topics.json"
    chosen.write_text('{"version": 1, "topics": [{"topic": "moved"}]}')
    generated = tools(REASSIGN, "--generate", "--topics-to-move-json-file", str(chosen), "--broker-list", "2,3")
    assert '"replicas":[1,2]' in generated.partition("Proposed")[0]
    plan = moves("moved", [3, 2], [2, 1])
    begun_s = time.monotonic()
    executed = tools.reassign("execute", plan, "--throttle", "2000000")
    assert "The inter-broker throttle limit was set to 2000000 B/s" in executed
    listed = tools(REASSIGN, "--list")
    assert "moved-0: replicas: 3,2,1. adding: 3. removing: 1." in listed
    assert "moved-0 is still in progress" in tools.reassign("verify", plan, "--preserve-throttles")
    assert throttles(tools, "moved") == set(THROTTLED)
    deadline_s = begun_s + DEADLINE_S
    while admin.list_partition_reassignments():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    # 10 MB at 2 MB/s, of which one answer may exceed the rate.
    assert time.monotonic() - begun_s > 3
    verified = tools.reassign("verify", plan)
    assert "Reassignment of partition moved-0 is completed." in verified
    assert "Clearing broker-level throttles" in verified
    assert throttles(tools, "moved") == set()
    rows = tools.described("--topic", "moved")
    assert [row["Replicas"] for row in rows] == ["3,2", "2,1"]


def test_a_reassignment_is_cancelled_with_its_throttle(admin: Admin, tools: Tools) -> None:
    create(admin, "kept", [1, 2])
    produce(tools.bootstrap, "kept", 20, 500_000)
    plan = moves("kept", [3, 2])
    tools.reassign("execute", plan, "--throttle", "1000")
    under_replicated = tools.described("--under-replicated-partitions", "--topic", "kept")
    # A replica that is on its way is not missing.
    assert under_replicated == []
    assert "Successfully cancelled partition reassignment for: kept-0" in tools.reassign("cancel", plan)
    assert throttles(tools, "kept") == set()
    assert sorted(tools.described("--topic", "kept")[0]["Replicas"].split(",")) == ["1", "2"]


def test_every_replica_is_verified(admin: Admin, tools: Tools) -> None:
    """The tool reads from followers, too, as a debugging consumer: replica id -2."""
    create(admin, "verified", [1, 2, 3])
    produce(tools.bootstrap, "verified", 50)
    # Far behind, as a moving replica that is throttled is.
    create(admin, "lagging", [1, 2])
    produce(tools.bootstrap, "lagging", 10, 500_000)
    command = [*tools.command(f"{TOOLS}.ReplicaVerificationTool"), "--broker-list", tools.bootstrap]
    options = ["--report-interval-ms", "200", "--max-wait-ms", "100", "--time", "-2", "--topics-include"]
    wait_for_report([*command, *options, "verified"], r"max lag is 0 for partition verified-0 at offset 50 ")
    tools.reassign("execute", moves("lagging", [1, 2, 3]), "--throttle", "1000")
    try:
        wait_for_report([*command, *options, "lagging"], r"max lag is [1-9]\d* for partition lagging-0 at offset [1-9]")
    finally:
        tools.reassign("cancel", moves("lagging", [1, 2, 3]))


def wait_for_report(command: list[str], pattern: str) -> None:
    """Run the tool until it reports this."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if re.search(pattern, line):
                    return
                assert len(lines) < 500, lines[-10:]
            raise AssertionError("".join(lines))
        finally:
            process.kill()


def test_leaders_are_elected(cluster: BrokerProcesses, admin: Admin, tools: Tools) -> None:
    create(admin, "elected", [1, 2, 3])
    tools.reassign("execute", moves("elected", [2, 1, 3]))
    partition = ["--topic", "elected", "--partition", "0"]
    output = tools(f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", *partition)
    assert "Successfully completed leader election (PREFERRED) for partitions elected-0" in output
    assert admin.describe_topics("elected")["elected"].partitions[0].leader_id == 2
    output = tools(f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", *partition)
    assert "Valid replica already elected for partitions elected-0" in output


def test_sizes_and_offsets(admin: Admin, tools: Tools) -> None:
    create(admin, "sized", [2, 3])
    produce(tools.bootstrap, "sized", 30)
    output = tools(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", "sized")
    (document,) = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    sizes = {
        row["broker"]: [each["size"] for directory in row["logDirs"] for each in directory["partitions"]]
        for row in document["brokers"]
    }
    assert sizes[1] == []
    assert sizes[2] == sizes[3]
    assert sizes[2][0] > 0
    assert tools(f"{TOOLS}.GetOffsetShell", "--topic", "sized").splitlines() == ["sized:0:30"]
    earliest = tools(f"{TOOLS}.GetOffsetShell", "--topic", "sized", "--time", "-2")
    assert earliest.splitlines() == ["sized:0:0"]


def test_the_cluster_and_what_its_brokers_offer(admin: Admin, tools: Tools) -> None:
    described = admin.describe_cluster()
    assert f"Cluster ID: {described.cluster_id}" in tools(f"{TOOLS}.ClusterTool", "cluster-id")
    endpoints = tools(f"{TOOLS}.ClusterTool", "list-endpoints")
    for node in described.nodes:
        assert re.search(rf"^{node.node_id} +{node.address.host} +{node.address.port} ", endpoints, re.MULTILINE)
    versions = tools(f"{TOOLS}.BrokerApiVersionsCommand")
    assert versions.count("Produce(0): ") == 3


def test_settings_of_brokers(tools: Tools) -> None:
    def change(*arguments: str) -> str:
        return tools(CONFIG_COMMAND, "--entity-type", "brokers", *arguments)

    change("--entity-default", "--alter", "--add-config", "log.retention.ms=7200000")
    change("--entity-name", "2", "--alter", "--add-config", "log.retention.ms=3600000")
    assert "log.retention.ms=7200000" in change("--entity-default", "--describe")
    shown = change("--entity-name", "2", "--describe", "--all")
    assert (
        "log.retention.ms=3600000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.retention.ms=3600000, "
        "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=7200000" in shown
    )
    change("--entity-name", "2", "--alter", "--delete-config", "log.retention.ms")
    change("--entity-default", "--alter", "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in change("--entity-name", "2", "--describe")


def test_settings_of_groups(tools: Tools) -> None:
    def groups(*arguments: str) -> str:
        return tools(CONFIG_COMMAND, "--entity-type", "groups", "--entity-name", "readers", *arguments)

    changes = "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=7000"
    assert "Completed updating config for group readers." in groups("--alter", "--add-config", changes)
    shown = groups("--describe")
    assert (
        "consumer.session.timeout.ms=50000 sensitive=false synonyms={DYNAMIC_GROUP_CONFIG:"
        "consumer.session.timeout.ms=50000, DEFAULT_CONFIG:group.consumer.session.timeout.ms=45000}" in shown
    )
    assert "consumer.heartbeat.interval.ms=7000" in shown
    everybody = tools(CONFIG_COMMAND, "--entity-type", "groups", "--describe")
    assert "Dynamic configs for group readers are:" in everybody
    groups("--alter", "--delete-config", "consumer.session.timeout.ms,consumer.heartbeat.interval.ms")
    assert "timeout" not in groups("--describe")


def test_levels_of_loggers(tools: Tools) -> None:
    def loggers(node_id: int, *arguments: str) -> str:
        return tools(CONFIG_COMMAND, "--entity-type", "broker-loggers", "--entity-name", str(node_id), *arguments)

    name = "tidelog.broker.forwarding"
    for node_id in (2, 3):
        assert f"{name}=INFO " in loggers(node_id, "--describe")
    loggers(2, "--alter", "--add-config", f"{name}=DEBUG")
    assert f"{name}=DEBUG " in loggers(2, "--describe")
    assert f"{name}=INFO " in loggers(3, "--describe")
    loggers(2, "--alter", "--delete-config", name)
    assert f"{name}=INFO " in loggers(2, "--describe")


def test_partitions_in_trouble_are_listed(tmp_path: Path) -> None:
    cluster = BrokerProcesses(tmp_path / "cluster")
    tools = Tools(cluster.bootstrap, tmp_path)
    try:
        cluster.start()
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            create(admin, "wide", [1, 2, 3])
            create(admin, "pair", [2, 3])
            create(admin, "lonely", [3], configs={"min.insync.replicas": "1"})
            for option in ("--under-replicated-partitions", "--under-min-isr-partitions", "--unavailable-partitions"):
                assert tools.described(option) == []
            cluster.brokers[3].kill()
            deadline_s = time.monotonic() + DEADLINE_S
            while any(3 in each.isr for each in admin.describe_topics("wide")["wide"].partitions):
                assert time.monotonic() < deadline_s
                time.sleep(0.2)
        bootstrap = Tools(cluster.brokers[1].bootstrap, tmp_path)
        listed = {
            option: {row["Topic"] for row in bootstrap.described(f"--{option}-partitions")}
            for option in ("under-replicated", "under-min-isr", "at-min-isr", "unavailable")
        }
        assert listed == {
            "under-replicated": {"wide", "pair", "lonely"},
            "under-min-isr": {"pair", "lonely"},
            "at-min-isr": {"wide"},
            "unavailable": {"lonely"},
        }
        refused = bootstrap(
            f"{TOOLS}.LeaderElectionCommand",
            *("--election-type", "unclean", "--topic", "lonely", "--partition", "0"),
            expected_code=1,
        )
        assert "lonely-0" in refused
    finally:
        cluster.kill()


def test_a_partition_that_is_nowhere_is_refused(admin: Admin, tools: Tools) -> None:
    assert TopicPartition("nowhere", 0) not in admin.list_partition_reassignments()
    path = tools.directory / "plan.json"
    path.write_text(json.dumps(moves("nowhere", [1])))
    output = tools(REASSIGN, "--execute", "--reassignment-json-file", str(path), expected_code=1)
    assert "nowhere" in output


def test_replicas_are_moved_between_log_directories(tmp_path: Path) -> None:
    broker = TidelogBroker(tmp_path / "broker", settings={"log.dirs": f"{tmp_path / 'one'},{tmp_path / 'two'}"})
    broker.start()
    try:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            create(admin, "between", [1])
            produce(broker.bootstrap, "between", 500, 1_000)
            key = TopicPartition("between", 0)
            tools = Tools(broker.bootstrap, tmp_path)
            for target in ("one", "two", "one"):
                path = str(tmp_path / target)
                row = {"topic": "between", "partition": 0, "replicas": [1], "log_dirs": [path]}
                plan: dict[str, object] = {"version": 1, "partitions": [row]}
                throttle = ("--replica-alter-log-dirs-throttle", "50000000")
                assert "Successfully started" in tools.reassign("execute", plan, *throttle)
                deadline_s = time.monotonic() + DEADLINE_S
                moved = "Reassignment of replica between-0-1 completed successfully."
                while moved not in (verified := tools.reassign("verify", plan)):
                    assert time.monotonic() < deadline_s, verified
                held = [each.path for each in admin.describe_log_dirs([1], partitions=[key])[1] if each.replicas]
                assert held == [path]
    finally:
        broker.kill()
