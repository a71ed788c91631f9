"""Range and round-robin give what the Java client gives, for a thousand groups of all sorts, racks included.

And what our members tell the leader, and it tells them, is what Java's reads and writes.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tidelog.client.consumer.assignors import (
    Assignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    TopicLayout,
)
from tidelog.client.consumer.member_bytes import read_assignment, write_assignment, write_subscription
from tidelog.client.consumer.sticky_assignors import CooperativeStickyAssignor, StickyAssignor, write_previous
from tidelog.client.types import TopicPartition

pytestmark = pytest.mark.compat

GROUPS = 1_000
RACKS = ["r1", "r2", "r3"]

# A line is one group: "assignor|topic=rack.rack,rack.rack;...|member=instance,hex of the subscription;...". The answer
# is "member=hex of the assignment;...". A partition without racks is "-".
_JAVA = """
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.*;

public class Assign {
    public static void main(String[] arguments) throws Exception {
        var input = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(assign(line.split("\\\\|", -1)));
        }
    }

    static String assign(String[] parts) {
        Map<String, Node> nodes = new HashMap<>();
        for (String rack : List.of("r1", "r2", "r3", "-"))
            nodes.put(rack, new Node(nodes.size(), "h", 1, rack.equals("-") ? null : rack));
        List<PartitionInfo> infos = new ArrayList<>();
        for (String row : split(parts[1])) {
            String[] topic = row.split("=", -1);
            String[] partitions = topic[1].split(",");
            for (int number = 0; number < partitions.length; number++) {
                Node[] replicas = Arrays.stream(partitions[number].split("\\\\.")).map(nodes::get).toArray(Node[]::new);
                infos.add(new PartitionInfo(topic[0], number, replicas[0], replicas, replicas));
            }
        }
        Cluster cluster = new Cluster("c", nodes.values(), infos, Set.of(), Set.of());
        Map<String, Subscription> members = new HashMap<>();
        for (String row : split(parts[2])) {
            String[] member = row.split("[=,]", -1);
            ByteBuffer data = ByteBuffer.wrap(HexFormat.of().parseHex(member[2]));
            Subscription told = ConsumerProtocol.deserializeSubscription(data);
            if (!member[1].isEmpty()) told.setGroupInstanceId(Optional.of(member[1]));
            members.put(member[0], told);
        }
        ConsumerPartitionAssignor assignor = switch (parts[0]) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
        StringJoiner answer = new StringJoiner(";");
        assignor.assign(cluster, new GroupSubscription(members)).groupAssignment().forEach((member, assignment) -> {
            ByteBuffer data = ConsumerProtocol.serializeAssignment(assignment);
            byte[] bytes = new byte[data.remaining()];
            data.get(bytes);
            answer.add(member + "=" + HexFormat.of().formatHex(bytes));
        });
        return answer.toString();
    }

    static List<String> split(String text) {
        return text.isEmpty() ? List.of() : List.of(text.split(";"));
    }
}
"""


class Group:
    """One group: topics with the racks of their partitions, members with what they subscribe to."""

    def __init__(self, chance: random.Random) -> None:
        topics = chance.sample(["a", "b", "topic-3", "Z", "_x"], chance.randint(1, 4))
        count = chance.randint(1, 9)
        with_racks = chance.random() < 0.6
        self.rows: dict[str, list[list[str]]] = {}
        for topic in topics:
            # Often as many as the others: topics that are partitioned alike are a case of their own.
            partitions = count if chance.random() < 0.6 else chance.randint(1, 9)
            width = chance.randint(1, 2)
            self.rows[topic] = [chance.sample(RACKS, width) if with_racks else ["-"] for _ in range(partitions)]
        self.members: dict[str, MemberSubscription] = {}
        alike = chance.random() < 0.5
        for number in chance.sample(range(100), chance.randint(1, 6)):
            wanted = [*topics, "absent"] if alike else chance.sample(topics, chance.randint(1, len(topics)))
            self.members[f"member-{number}"] = MemberSubscription(
                frozenset(wanted),
                instance_id=f"static-{chance.randint(0, 9)}{number}" if chance.random() < 0.3 else None,
                rack=chance.choice(RACKS) if with_racks and chance.random() < 0.8 else None,
            )

    @property
    def layout(self) -> TopicLayout:
        racks = {
            TopicPartition(topic, number): frozenset(each) - {"-"}
            for topic, rows in self.rows.items()
            for number, each in enumerate(rows)
        }
        return TopicLayout({topic: len(rows) for topic, rows in self.rows.items()}, racks)

    def line(self, assignor: Assignor) -> str:
        topics = ";".join(f"{topic}={','.join('.'.join(each) for each in rows)}" for topic, rows in self.rows.items())
        members = ";".join(
            f"{member_id}={member.instance_id or ''},{write_subscription(member).hex()}"
            for member_id, member in self.members.items()
        )
        return f"{assignor.name}|{topics}|{members}"


def ask_java(java_jars: Path, tmp_path: Path, version: str, lines: list[str]) -> list[dict[str, bytes]]:
    program = tmp_path / "Assign.java"
    program.write_text(_JAVA)
    classpath = os.pathsep.join(str(jar) for jar in sorted((java_jars / f"lib-{version}").glob("*.jar")))
    done = subprocess.run(
        ["java", "-cp", classpath, str(program)], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = []
    for line in done.stdout.splitlines():
        pairs = (row.rsplit("=", 1) for row in line.split(";") if row)
        answers.append({member_id: bytes.fromhex(data) for member_id, data in pairs})
    return answers


@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_range_and_round_robin_are_javas(java_jars: Path, tmp_path: Path, version: str) -> None:
    chance = random.Random(20_26)
    cases = [
        (assignor, Group(chance)) for assignor in (RangeAssignor(), RoundRobinAssignor()) for _ in range(GROUPS // 2)
    ]
    answers = ask_java(java_jars, tmp_path, version, [group.line(assignor) for assignor, group in cases])
    assert len(answers) == len(cases)
    for (assignor, group), answer in zip(cases, answers, strict=True):
        ours = assignor.assign(group.layout, group.members)
        assert {member_id: read_assignment(data) for member_id, data in answer.items()} == {
            member_id: frozenset(partitions) for member_id, partitions in ours.items()
        }, group.line(assignor)


@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_javas_leaders_understand_what_sticky_members_had(java_jars: Path, tmp_path: Path, version: str) -> None:
    """Java's plan for our members leaves everything where our leader had put it, and the other way round."""
    chance = random.Random(7)
    lines, expected = [], []
    for assignor in (StickyAssignor(), CooperativeStickyAssignor()):
        for _ in range(100):
            group = Group(chance)
            group.members = {member_id: MemberSubscription(frozenset({*group.rows})) for member_id in group.members}
            group.rows = {topic: [["-"] for _ in rows] for topic, rows in group.rows.items()}
            plan = assignor.assign(group.layout, group.members)
            group.members = {
                member_id: MemberSubscription(
                    member.topics,
                    owned=tuple(plan[member_id]) if assignor.is_cooperative else (),
                    generation=3,
                    user_data=None if assignor.is_cooperative else write_previous(plan[member_id], 3),
                )
                for member_id, member in group.members.items()
            }
            lines.append(group.line(assignor))
            expected.append({member_id: frozenset(partitions) for member_id, partitions in plan.items()})
    answers = ask_java(java_jars, tmp_path, version, lines)
    for answer, ours in zip(answers, expected, strict=True):
        assert {member_id: read_assignment(data) for member_id, data in answer.items()} == ours
        for data in answer.values():
            assert read_assignment(write_assignment(read_assignment(data))) == read_assignment(data)
