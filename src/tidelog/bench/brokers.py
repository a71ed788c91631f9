"""The brokers under measurement: Tidelog as users start it, Apache Kafka as its own start script would.

What always holds: each broker is a process of its own, listens on loopback unless it is given a network of its own,
keeps its data below the directory it is given, and is stopped by process id. Apache Kafka runs with the heap, the
collector and the log settings that its distribution ships (kafka-server-start.sh: 1 GiB heap, G1), so that the peer is
not held back.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from tidelog.bench import maven
from tidelog.bench.errors import MeasurementError
from tidelog.client.admin import Admin
from tidelog.client.errors import ClientError
from tidelog.common.ids import random_uuid, uuid_to_text
from tidelog.common.interruption import undisturbed

KAFKA_VERSION = "4.3.1"
LOOPBACK = "127.0.0.1"
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
_SERVER_PORTS = range(15_000, 32_000)
# What kafka-run-class.sh and kafka-server-start.sh pass to the JVM.
KAFKA_JVM_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


class BrokerProcess(ABC):
    """A broker in a process of its own."""

    name: str

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        host: str = LOOPBACK,
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` is a command that runs another one, such as in the network where `host` is this broker's address."""
        self.directory = directory
        self.host = host
        self.port = port or free_port()
        self.prefix = tuple(prefix)
        self.settings = dict(settings or {})  # beside the defaults; their names are the same for both
        self.start_seconds = 0.0
        self._began_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of a process that ended by itself; None while it runs, and after `stop` and `kill`."""
        return None if self._process is None else self._process.poll()

    @property
    def log_path(self) -> Path:
        return self.directory / "output.log"

    @abstractmethod
    def command(self) -> list[str]:
        """The command line; whatever must be prepared before the clock starts is prepared here."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    def start(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Start it and wait for its first answer; `start_seconds` is the time from the command to that answer.

        Whatever ends the wait, a signal included, also ends the broker.
        """
        try:
            self._start(deadline_s)
        except BaseException:
            self.kill()
            raise

    def _start(self, deadline_s: float) -> None:
        self.launch()
        self.wait_until_up(deadline_s)

    def launch(self) -> None:
        """Start it, and don't wait: a member of a cluster may need the others before it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [*self.prefix, *self.command()]
        self._output = self.log_path.open("ab")
        self._began_s = time.perf_counter()
        with undisturbed():
            self._process = subprocess.Popen(
                command,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment(),
            )

    def wait_until_up(self, deadline_s: float = START_DEADLINE_S) -> None:
        began = self._began_s
        process = self._process
        if process is None:
            raise RuntimeError(f"{self.name} is not running")
        with Admin(bootstrap_servers=self.bootstrap, request_timeout_ms=5_000, default_api_timeout_ms=5_000) as admin:
            while not answers(admin):
                if process.poll() is not None or time.perf_counter() - began > deadline_s:
                    tail = self.log_path.read_bytes()[-2000:].decode(errors="replace")
                    raise MeasurementError(f"{self.name} did not come up; the end of its output:\n{tail}")
                time.sleep(0.002)
            self.start_seconds = time.perf_counter() - began

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired as error:
            raise MeasurementError(f"{self.name} did not stop within {deadline_s:g} s") from error
        finally:
            self.kill()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if self._output is not None:
            self._output.close()
            self._output = None

    def pause(self) -> None:
        """Stop it where it is, as if it hung, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class TidelogBroker(BrokerProcess):
    """`tidelog serve` with its defaults, but for what is given; brokers of a cluster have node ids."""

    name = "Tidelog"

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        host: str = LOOPBACK,
        prefix: Sequence[str] = (),
        data: Path | None = None,
        node_id: int | None = None,
        metadata: str | None = None,
    ) -> None:
        """Brokers that share their metadata by SQLite also share `data`, the directory where it is."""
        super().__init__(directory, port, settings=settings, host=host, prefix=prefix)
        self.data = data or directory / "data"
        self.node_id = node_id
        self._metadata = metadata

    def command(self) -> list[str]:
        # The console script's own interpreter and entry point, without a shell in between.
        return [
            sys.executable,
            "-m",
            "tidelog",
            "serve",
            "--listen",
            self.bootstrap,
            "--data",
            str(self.data),
            *([] if self.node_id is None else ["--node-id", str(self.node_id)]),
            *([] if self._metadata is None else ["--metadata", self._metadata]),
            *(f"--set={name}={value}" for name, value in self.settings.items()),
        ]


class KafkaQuorum:
    """What Kafka's brokers of one cluster have in common: its id, and where the controllers listen."""

    def __init__(self, members: int, hosts: Sequence[str] = ()) -> None:
        """`hosts` are the controllers' addresses where these are not loopback."""
        self.cluster_id = uuid_to_text(random_uuid())
        self.controllers = [f"{host}:{free_port()}" for host in hosts or [LOOPBACK] * members]


class KafkaBroker(BrokerProcess):
    """Apache Kafka in KRaft mode, combined broker and controller, from the jars that Maven brings."""

    name = f"Apache Kafka {KAFKA_VERSION}"

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        jars: Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        host: str = LOOPBACK,
        prefix: Sequence[str] = (),
        quorum: KafkaQuorum | None = None,
        node_id: int = 1,
        jvm_options: Sequence[str] = KAFKA_JVM_OPTIONS,
        more_jars: Sequence[Path] = (),
    ) -> None:
        """`more_jars` are directories with jars for the class path, beside Kafka's own."""
        super().__init__(directory, port, settings=settings, host=host, prefix=prefix)
        self._jars = jars or kafka_jars()
        self._jvm_options = jvm_options
        self._class_path = os.pathsep.join(f"{place}/*" for place in (self._jars, *more_jars))
        self.quorum = quorum or KafkaQuorum(1)
        self.node_id = node_id

    def command(self) -> list[str]:
        properties = self.directory / "server.properties"
        data = self.directory / "data"
        if not (data / "meta.properties").exists():
            properties.write_text(self._properties(data))
            java = ["java", "-cp", self._class_path]
            format_storage = ["kafka.tools.StorageTool", "format", "-t", self.quorum.cluster_id, "-c"]
            done = subprocess.run([*java, *format_storage, str(properties)], capture_output=True, text=True)
            if done.returncode != 0:
                raise MeasurementError(f"Kafka's storage tool failed:\n{done.stdout}{done.stderr}")
        return ["java", *self._jvm_options, "-cp", self._class_path, "kafka.Kafka", str(properties)]

    def _properties(self, data: Path) -> str:
        """Kafka's shipped config/server.properties, with its own addresses and data directory."""
        controllers = self.quorum.controllers
        voters = [f"{number}@{address}" for number, address in enumerate(controllers, 1)]
        return "\n".join(
            [
                "process.roles=broker,controller",
                f"node.id={self.node_id}",
                f"controller.quorum.bootstrap.servers={','.join(controllers)}",
                f"controller.quorum.voters={','.join(voters)}",
                f"listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://{controllers[self.node_id - 1]}",
                "inter.broker.listener.name=PLAINTEXT",
                f"advertised.listeners=PLAINTEXT://{self.bootstrap}",
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "num.network.threads=3",
                "num.io.threads=8",
                "socket.send.buffer.bytes=102400",
                "socket.receive.buffer.bytes=102400",
                "socket.request.max.bytes=104857600",
                f"log.dirs={data}",
                "num.partitions=1",
                "num.recovery.threads.per.data.dir=1",
                "offsets.topic.replication.factor=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                "log.retention.hours=168",
                "log.segment.bytes=1073741824",
                "log.retention.check.interval.ms=300000",
                *(f"{name}={value}" for name, value in self.settings.items()),
                "",
            ]
        )


def answers(admin: Admin) -> bool:
    """One whole round trip, past the versions: an open port alone is not a working broker."""
    try:
        return bool(admin.describe_cluster().nodes)
    except ClientError:
        return False


def environment() -> dict[str, str]:
    """Our environment, with bytecode kept as pip keeps it, even in a checkout whose developer forbids it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def free_port() -> int:
    """A port that stays free while its server is down: not one of those that connections go out from (32768 up)."""
    for port in random.SystemRandom().sample(_SERVER_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise MeasurementError("none of a hundred ports is free; end servers that were left behind")


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """The directory with Kafka's jars, downloaded by Maven the first time and kept in the user's cache."""
    artifacts = [f"org.apache.kafka:{artifact}:{version}" for artifact in ("kafka_2.13", "kafka-tools")]
    return maven.jars(f"kafka-{version}", artifacts)
