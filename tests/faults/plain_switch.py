"""A promotion or rollback of `plain_version` in a process of its own, which kills itself with -9 where it is told to.

    python plain_switch.py STATE BOOTSTRAP promote|rollback POINT

POINT is `none`, `before:STEP` or `after:STEP` of a step of the switch (after its work, before the registry knows),
`in-transaction`, `after-commit`, or a number of milliseconds from the start of the switch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tidelog import Producer
from tidelog.pipeline.versions import switch_stage
from tidelog.pipeline.versions.kappa import Kappa
from tidelog.pipeline.versions.registry import Registry
from tidelog.pipeline.versions.registry_rows import Switch

HERE = Path(__file__).parent


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """Put the end of this process where it is wanted."""
    where, _, step = point.partition(":")
    if where in ("before", "after"):
        name = step.replace("-", "_")
        action: Callable[[Any, Switch], Mapping[str, Any]] = getattr(switch_stage.SwitchStage, name)

        def dying(stage: Any, switch: Switch) -> Mapping[str, Any]:
            if where == "after":
                action(stage, switch)
            die()
            raise AssertionError

        setattr(switch_stage.SwitchStage, name, dying)
    elif where in ("in-transaction", "after-commit"):
        commit = Producer.commit_transaction

        def dying_commit(producer: Any, timeout: float | None = None) -> None:
            if where == "in-transaction":
                producer.flush()
            else:
                commit(producer, timeout)
            die()

        Producer.commit_transaction = dying_commit  # type: ignore[method-assign,assignment]  # that is the point
    elif where != "none":
        threading.Timer(int(where) / 1000, die).start()


def main(state: str, bootstrap: str, kind: str, point: str) -> None:
    with Registry(state) as registry:
        kappa = Kappa(registry, "totals", bootstrap)

        def launch(version: int) -> None:
            role = "live" if registry.live_version("totals") == version else "shadow"
            command = [sys.executable, str(HERE / "plain_version.py"), state, bootstrap, str(version), role]
            started = subprocess.Popen(command)
            # One that was killed before it was seen is started again by whoever waits for it.
            while registry.running("totals", version) is None and started.poll() is None:
                time.sleep(0.05)

        def wait_until_near(version: int) -> None:
            while registry.running("totals", version) is None or not kappa.behind(version).is_caught_up:
                time.sleep(0.05)

        arm(point)
        if kind == "promote":
            kappa.promote(2, launch, lambda text: None)
        else:
            kappa.rollback(launch, lambda text: None, wait_until_near)
        os._exit(0)  # a timer that was not needed must not keep it


if __name__ == "__main__":
    main(*sys.argv[1:])
