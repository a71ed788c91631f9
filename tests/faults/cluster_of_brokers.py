"""Several brokers in a process of their own, which tests use as they use one: started, stopped and killed together.

They are apart from the tests, because some of these count the threads, files and log lines of their own process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tidelog.testing import Cluster


class ClusterOfBrokers:
    """What `BrokerProcess` offers to the client suite, for a cluster; its process ends with the tests'."""

    def __init__(self, directory: Path, brokers: int, *, settings: Mapping[str, str]) -> None:
        self.is_running = False
        self.bootstrap = ""
        self._arguments = [str(directory), str(brokers), json.dumps(dict(settings))]
        self._process: subprocess.Popen[str] | None = None

    @property
    def port(self) -> int:
        """Where one of the brokers listens."""
        return int(self.bootstrap.rpartition(":")[2])

    def start(self) -> None:
        if self._process is None:
            command = [sys.executable, __file__, *self._arguments]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.bootstrap = self._tell("start")
        self.is_running = True

    def stop(self) -> None:
        self._tell("stop")
        self.is_running = False

    def kill(self) -> None:
        if self._process is not None:
            self._tell("kill")
        self.is_running = False

    def close(self) -> None:
        """End the process; whatever brokers still run are killed with it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _tell(self, order: str) -> str:
        process = self._process
        assert process is not None, "the cluster was never started"
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(order + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer.startswith("done "), f"the process of the cluster ended at {order!r}"
        return answer.split()[1]


def obey(cluster: Cluster) -> None:
    """Carry out orders until nobody gives them any more."""

    def each(end: Callable[[int], None]) -> None:
        for node_id in cluster.running:
            end(node_id)

    for line in sys.stdin:
        match line.strip():
            case "start":
                cluster.start()
            case "stop":
                each(cluster.stop)
            case "kill":
                each(cluster.kill)
        print("done", cluster.bootstrap, flush=True)


if __name__ == "__main__":
    obey(Cluster(int(sys.argv[2]), data_dir=sys.argv[1], settings=json.loads(sys.argv[3])))
