"""A ZooKeeper server as a child process: its jars, its configuration, its readiness, its end.

What always holds: it is Apache ZooKeeper itself, unmodified; its jars come with pyspark or from a directory that the
user names. Time-outs are shorter than ZooKeeper's defaults, so that brokers notice a dead peer in seconds: a session of
1 to 10 s is possible, and a leader that hangs is replaced within three. The child ends with its parent's word, by
process id, and nothing else of the machine is touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tidelog.common.endpoint import Endpoint
from tidelog.common.light_dataclass import dataclass

TICK_MS: Final = 500
"""ZooKeeper's unit of time. Sessions may last 2 to 20 of these."""

INIT_TICKS: Final = 20
SYNC_TICKS: Final = 4
"""How far a follower may lag behind its leader before it is cut off: 2 s."""

CONNECT_TIMEOUT_MS: Final = 500
"""Between servers, when a leader is elected. ZooKeeper's default of 5 s makes that the time a hanging leader costs."""

RESPONSE_BYTES_MAX: Final = 16 << 20
"""Of the list of all topics' nodes, for example; ZooKeeper's default of 1 MB is enough for some 20,000."""

_MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_NEEDED_JARS: Final = (
    "zookeeper-",
    "zookeeper-jute-",
    "netty-",
    "slf4j-api-",
    "metrics-core-",
    "log4j-",
    "snappy-java-",
)
_HEAP: Final = "-Xmx256m"

_LOGGING: Final = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
"""


class ZooKeeperError(Exception):
    """ZooKeeper can't be started; the text says what to do."""


@dataclass(frozen=True, slots=True)
class ZooKeeperPlan:
    """How one server runs. `servers` are `host:peer port:election port` of all, in the order of their ids from 1.

    `prefix` is a command that runs another one, such as in a network of its own. What the server says goes to this
    process's standard error, or to the end of the file `log_path`.
    """

    listen: Endpoint
    data_dir: Path
    server_id: int = 1
    servers: Sequence[str] = field(default_factory=tuple)
    jars: Path | None = None
    log_level: str = "warn"
    prefix: Sequence[str] = field(default_factory=tuple)
    log_path: Path | None = None

    def configuration(self) -> str:
        lines = [
            f"tickTime={TICK_MS}",
            f"initLimit={INIT_TICKS}",
            f"syncLimit={SYNC_TICKS}",
            f"dataDir={self.data_dir.absolute() / 'data'}",
            f"clientPortAddress={self.listen.host}",
            f"clientPort={self.listen.port}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=ruok,srvr,mntr",
            "maxClientCnxns=0",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
        ]
        if self.servers:
            lines += [f"server.{number}={address}" for number, address in enumerate(self.servers, start=1)]
        return "".join(f"{line}\n" for line in lines)


def find_jars(given: Path | None) -> list[Path]:
    """The jars to run; raises ZooKeeperError that says where to get them."""
    if given is not None:
        directory = given
    else:
        found = find_spec("pyspark")
        if found is None or found.origin is None:
            raise ZooKeeperError(
                "ZooKeeper's jars come with pyspark, which is not installed: install Tidelog with the extra 'spark', "
                "or name a directory with the jars of a ZooKeeper release by --jars"
            )
        directory = Path(found.origin).parent / "jars"
    jars = sorted(directory.glob("*.jar"))
    if not any(jar.name.startswith("zookeeper-") and "jute" not in jar.name for jar in jars):
        raise ZooKeeperError(
            f"{directory} has no zookeeper-*.jar; --jars names the lib directory of a ZooKeeper release"
        )
    # All of pyspark's would make the JVM look through 300 files.
    return jars if given is not None else [jar for jar in jars if jar.name.startswith(_NEEDED_JARS)]


def check_servers(servers: Sequence[str], server_id: int) -> None:
    """Raises ZooKeeperError for an ensemble that ZooKeeper would misunderstand."""
    for server in servers:
        host, _, ports = server.partition(":")
        if not host or ports.count(":") != 1 or not all(port.isdecimal() for port in ports.split(":")):
            raise ZooKeeperError(f"{server!r} is not HOST:PEER-PORT:ELECTION-PORT, such as 10.0.0.1:2888:3888")
    if servers and not 1 <= server_id <= len(servers):
        raise ZooKeeperError(f"--id {server_id} is none of the {len(servers)} servers; it counts from 1")
    if servers and len(servers) % 2 == 0:
        raise ZooKeeperError(
            f"{len(servers)} servers survive no more failures than {len(servers) - 1}: use an odd number"
        )


class ZooKeeperProcess:
    """One running server. It is started once."""

    def __init__(self, plan: ZooKeeperPlan) -> None:
        self.plan = plan
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._running.poll()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("ZooKeeper was not started")
        return self._process

    def start(self) -> None:
        """Write the configuration and start the server; raises ZooKeeperError. `is_serving` tells when it is ready."""
        plan = self.plan
        java = shutil.which("java")
        if java is None:
            raise ZooKeeperError("ZooKeeper needs Java: install a runtime, such as Debian's openjdk-17-jre-headless")
        check_servers(plan.servers, plan.server_id)
        jars = find_jars(plan.jars)
        if _answers(plan.listen):
            raise ZooKeeperError(
                f"something already listens on {plan.listen.host}:{plan.listen.port}; choose another port with --listen"
            )
        data = plan.data_dir / "data"
        try:
            data.mkdir(parents=True, exist_ok=True)
            configuration = plan.data_dir / "zoo.cfg"
            configuration.write_text(plan.configuration(), encoding="utf-8")
            logging = plan.data_dir / "log4j2.properties"
            logging.write_text(_LOGGING.replace("{level}", plan.log_level), encoding="utf-8")
            if plan.servers:
                (data / "myid").write_text(f"{plan.server_id}\n", encoding="ascii")
        except OSError as error:
            raise ZooKeeperError(f"can't use the data directory {plan.data_dir}: {error.strerror}") from error
        command = [
            *plan.prefix,
            java,
            _HEAP,
            f"-Djute.maxbuffer={RESPONSE_BYTES_MAX}",
            f"-Dzookeeper.cnxTimeout={CONNECT_TIMEOUT_MS}",
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            os.pathsep.join(map(str, jars)),
            _MAIN_CLASS,
            str(configuration),
        ]
        # A session of its own: Ctrl-C goes to the parent alone, which ends the child in order.
        with plan.log_path.open("ab") if plan.log_path else nullcontext() as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )

    def is_serving(self) -> bool:
        """Whether it answers clients: in an ensemble that takes a majority."""
        return b"Mode: " in self.status()

    def status(self) -> bytes:
        """What it says of itself; empty while it does not answer."""
        return four_letter_word(self.plan.listen, "srvr")

    def stop(self, kill_after_s: float = 10.0) -> int:
        """End it and wait for that; returns its exit code."""
        process = self._running
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(kill_after_s)
            except subprocess.TimeoutExpired:
                process.kill()
        return process.wait()


def _answers(endpoint: Endpoint) -> bool:
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=1.0):
            return True
    except OSError:
        return False


def four_letter_word(endpoint: Endpoint, word: str) -> bytes:
    """The answer to one of ZooKeeper's short commands; empty while nobody answers."""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=1.0) as connection:
            connection.sendall(word.encode("ascii"))
            parts = []
            while part := connection.recv(4096):
                parts.append(part)
            return b"".join(parts)
    except OSError:
        return b""
