"""Exactly-once copies: each kind of client copies one topic into another of its own, in transactions."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Final

from tidelog.torture.workers import sender, transactor
from tidelog.torture.workers.sender import SenderOrders
from tidelog.torture.workers.transactor import TransactorOrders
from tidelog.torture.workers.worker import Orders
from tidelog.torture.workloads.driving import DrivenWorkload
from tidelog.torture.workloads.fleet import Identity, Post
from tidelog.torture.workloads.place import WorkloadError

_PARTITIONS: Final = 4
_OURS, _CONFLUENT, _JAVA = "tidelog", "confluent", "java"
_COPIERS: Final = {_OURS: 2, _CONFLUENT: 2, _JAVA: 1}
# Other clients may get stuck for good while brokers die; whoever runs them starts them again.
_SILENCE_S: Final = 60.0
_JAVA_CLASS: Final = "TortureCopier"
# A small program: little memory, and no time lost on compiling it well.
_JVM: Final = ("-Xmx128m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class CopyWorkload(DrivenWorkload):
    """A sender, and copiers with our client, confluent-kafka and Java's."""

    name: ClassVar[str] = "copy"
    about: ClassVar[str] = "exactly-once copies with our client, confluent-kafka and Java's client"
    default_rate: ClassVar[float] = 600.0

    def __init__(self) -> None:
        super().__init__()
        self._families: tuple[str, ...] = (_OURS,)

    def check_place(self) -> None:
        super().check_place()
        missing = {_CONFLUENT: _why_not_confluent(), _JAVA: _why_not_java(self.place.java_libs)}
        self._families = (_OURS, *(family for family, why in missing.items() if not why))
        self.notes.left_out |= {f"copier {family}": why for family, why in missing.items() if why}
        if _JAVA in self._families:
            self._compile()

    def topics(self) -> Mapping[str, int]:
        return dict.fromkeys([self.topic("source"), *map(self.topic, self._families)], _PARTITIONS)

    def add_posts(self) -> None:
        source = self.topic("source")
        # What a killed sender had sent is copied, and would otherwise be known from the copies alone.
        sending = SenderOrders(
            **self.common_orders("send-0"),
            topic=source,
            partitions=_PARTITIONS,
            rate=self.place.rate,
            announces=True,
        )
        self.add_sender(self.python_post(sending, sender.__name__))
        posts = {_OURS: self._own_post, _CONFLUENT: self._confluent_post, _JAVA: self._java_post}
        for family in self._families:
            for number in range(_COPIERS[family]):
                post = posts[family](f"{family}-{number}", self.topic(family))
                self.add_member(post, self.topic(family), source)

    def _own_post(self, role: str, target: str) -> Post:
        orders = TransactorOrders(
            **self.common_orders(role),
            topic=self.topic("source"),
            partitions=_PARTITIONS,
            copy_to=target,
            group=target,
            transactional_id=f"{target}-{role}",
        )
        return self.python_post(orders, transactor.__name__)

    def _confluent_post(self, role: str, target: str) -> Post:
        from tidelog.torture.workers import confluent_copier  # only where confluent-kafka is installed

        orders: Orders = confluent_copier.ConfluentCopierOrders(
            **self.common_orders(role),
            topic=self.topic("source"),
            copy_to=target,
            group=target,
            transactional_id=f"{target}-{role}",
        )
        post = self.python_post(orders, confluent_copier.__name__)
        return Post(post.name, post.command, silence_s=_SILENCE_S)

    # Java

    @property
    def _classes(self) -> Path:
        return self.place.directory / "java"

    def _compile(self) -> None:
        """Once, as `java TortureCopier.java` would do at each start of the copier."""
        source = self._classes / f"{_JAVA_CLASS}.java"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes((files("tidelog.torture.workers") / "java" / source.name).read_bytes())
        command = ["javac", "-nowarn", "-d", str(self._classes), "-cp", f"{self.place.java_libs}/*", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise WorkloadError(f"the copier in Java could not be compiled:\n{done.stdout}{done.stderr}")

    def _java_post(self, role: str, target: str) -> Post:
        orders = self.common_orders(role)

        def command(identity: Identity) -> list[str]:
            own = {
                **orders,
                "name": identity.name,
                "number": identity.number,
                "history": identity.history,
                "progress": identity.progress,
                "topic": self.topic("source"),
                "copy_to": target,
                "group": target,
                "transactional_id": f"{target}-{role}",
            }
            java = ["java", *_JVM, "-cp", f"{self._classes}:{self.place.java_libs}/*", _JAVA_CLASS]
            return [*self.place.command_prefix, *java, *(f"{name}={value}" for name, value in own.items())]

        return Post(str(orders["name"]), command, silence_s=_SILENCE_S)


def _why_not_confluent() -> str:
    if importlib.util.find_spec("confluent_kafka") is None:
        return "confluent-kafka is not installed: pip install 'tidelog[bench]'"
    return ""


def _why_not_java(libs: Path | None) -> str:
    if libs is None:
        return (
            "the jars of Kafka's client are not here; Maven brings them: apt-get install maven openjdk-17-jdk-headless"
        )
    if not any(libs.glob("kafka-clients-*.jar")):
        return f"there is no kafka-clients-*.jar in {libs}"
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            return f"{program} was not found: apt-get install openjdk-17-jdk-headless"
    return ""
